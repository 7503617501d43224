"""How a group shrinks, without processes: whoever stops, dies or is left out at any step, there is one decision."""

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from unisono.base.records import Proposal
from unisono.ranks.group.agreement import agree, next_proposal

pytestmark = pytest.mark.quick

Ranks = frozenset[int]


class Rank(NamedTuple):
    """told: what others read. has: without whom the groups are whose memory it has. without: whom it wants to leave
    out. looks, gone, seen: whether it looks just now, whom it saw gone when it began to, and what it has read of the
    others, as far as it is.
    """

    told: Proposal | None = None
    has: frozenset[Ranks] = frozenset()
    without: Ranks = frozenset()
    looks: bool = False
    gone: Ranks = frozenset()
    seen: tuple[Proposal | None, ...] = ()

    @property
    def decided(self) -> bool:
        return self.told is not None and self.told.decided


class World(NamedTuple):
    """A state of all ranks.

    What may happen yet: wishes: that a rank calls `shrink` again, or for the first time, to leave some out; deaths,
    interrupts, ballots: how many.
    """

    ranks: tuple[Rank, ...]
    dead: Ranks = frozenset()
    wishes: tuple[tuple[int, int], ...] = ()
    deaths: int = 0
    interrupts: int = 0
    ballots: int = 2


def of(size: int, **what: object) -> World:
    """At the beginning."""
    return World((Rank(),) * size)._replace(**what)


def replaced(world: World, me: int, rank: Rank) -> World:
    return world._replace(ranks=(*world.ranks[:me], rank, *world.ranks[me + 1 :]))


def following(world: World, at_once: int = 1) -> Iterator[World]:
    """All states that may come next. Who is stopped makes no step. at_once: how many others are read in one step."""
    for me, rank in enumerate(world.ranks):
        if me in world.dead:
            continue
        if world.deaths:
            yield world._replace(dead=world.dead | {me}, deaths=world.deaths - 1)
        if rank.decided:
            continue
        if world.interrupts and rank.told is not None and rank.told.ready:
            again = replaced(world, me, done(rank._replace(told=rank.told._replace(ready=False))))
            yield again._replace(interrupts=world.interrupts - 1)
        for wish in world.wishes:
            if wish[0] == me and not rank.looks:
                again = replaced(world, me, rank._replace(without=rank.without | {wish[1]}))
                yield again._replace(wishes=tuple(other for other in world.wishes if other != wish))
        decides = len(rank.seen) == len(world.ranks) - 1
        for finds in (True, False) if decides else (True,):
            then = step(world, me, at_once, finds=finds)
            yield then
            begun = step(world, me, at_once, finds=finds, may_begin=world.ballots > 0)
            if begun != then:
                yield begun._replace(ballots=world.ballots - 1)


def done(rank: Rank) -> Rank:
    """The rank, which looks no more."""
    return rank._replace(looks=False, gone=frozenset(), seen=())


def step(world: World, me: int, at_once: int = 1, *, may_begin: bool = False, finds: bool = True) -> World:
    """This rank begins a look, or reads on, or does what follows from the look. finds: the memory, if all agree."""
    rank, others = world.ranks[me], [other for other in range(len(world.ranks)) if other != me]
    if not rank.looks:
        rank = rank._replace(looks=True, gone=world.dead)
        if world.deaths or world.dead:
            return replaced(world, me, rank)
    if len(rank.seen) < len(others):
        more = (world.ranks[other].told for other in others[len(rank.seen) :][:at_once])
        return replaced(world, me, rank._replace(seen=(*rank.seen, *more)))
    seen, mine, found = dict(zip(others, rank.seen, strict=True)), rank.told, False
    if mine is not None and me not in mine.failed and agree(mine, seen):
        rank = rank._replace(has=rank.has | {mine.failed}) if finds else rank
        found = mine.failed in rank.has
    told = next_proposal(me, mine, seen, rank.gone | rank.without, has_memory=found, may_begin=may_begin)
    return replaced(world, me, done(rank._replace(told=told)))


def check(world: World, wishes: Ranks) -> None:
    """What must be true in every state. wishes: whom a rank wants or wanted to leave out."""
    decisions = {rank.told.failed for rank in world.ranks if rank.told is not None and rank.told.decided}
    assert len(decisions) <= 1, "two groups"
    for failed in decisions:
        assert failed <= world.dead | wishes, "who lives, and whom nobody wants to leave out, is left out"
        members = (rank for me, rank in enumerate(world.ranks) if me not in failed | world.dead)
        assert all(failed in rank.has for rank in members), "a member without memory"


def explore(start: World, at_once: int, most: int = 1_000_000) -> list[World]:
    wishes = frozenset(wish[1] for wish in start.wishes)
    known, open_ = {start}, [start]
    while open_:
        world = open_.pop()
        check(world, wishes)
        for then in following(world, at_once):
            if then not in known:
                known.add(then)
                open_.append(then)
        assert len(known) < most, "too many states to look at"
    return list(known)


def ends(world: World, stopped: Ranks) -> World:
    """Let all but those who are stopped go on, and leave these out. In each round another one may begin a ballot."""
    goes = [me for me in range(len(world.ranks)) if me not in stopped | world.dead]
    for me in goes:
        world = replaced(world, me, world.ranks[me]._replace(without=world.ranks[me].without | stopped))
    for _ in range(8):
        for chosen in goes:
            for _ in range(60):
                for me in goes:
                    if not world.ranks[me].decided:
                        world = step(world, me, may_begin=me == chosen)
    return world


def check_ends(world: World, stopped: Ranks) -> None:
    """All who go on come to an end, whoever else is stopped here."""
    last = ends(world, stopped)
    check(last, frozenset(range(len(world.ranks))))
    for me, rank in enumerate(last.ranks):
        assert rank.decided or me in stopped | last.dead, (world, stopped, last)


STARTS = [
    (of(2, wishes=((1, 0), (0, 1))), 1),
    (of(2, wishes=((1, 0),), ballots=4), 1),
    (of(2, wishes=((1, 0),), deaths=1, interrupts=1), 1),
    (of(2, wishes=((1, 0),), deaths=1), 1),
    (of(3, wishes=((2, 0),), ballots=1), 2),
]
MORE = [
    (of(2, wishes=((1, 0), (0, 1)), deaths=1, interrupts=1), 1),
    (of(3, ballots=3), 2),
    (of(3, wishes=((2, 0),)), 1),
    (of(3, wishes=((1, 0), (2, 0))), 2),
    (of(3, wishes=((1, 0), (2, 1)), ballots=1), 2),
    (of(3, wishes=((1, 2), (2, 1)), ballots=1), 2),
    (of(3, wishes=((1, 0),), deaths=1, ballots=1), 2),
]


@pytest.mark.parametrize(("start", "at_once"), STARTS + [pytest.param(*row, marks=pytest.mark.long) for row in MORE])
def test_all_interleavings(start: World, at_once: int) -> None:
    """Where there are many states, ranks look at all others in one step, to end today."""
    worlds = explore(start, at_once)
    assert any(rank.decided for world in worlds for rank in world.ranks)
    for world in random.Random(7).sample(worlds, min(len(worlds), 100)):
        for stopped in (frozenset[int](), *(frozenset({rank}) for rank in range(len(start.ranks)))):
            check_ends(world, stopped)


@pytest.mark.parametrize("seed", range(10))
def test_random_interleavings(seed: int) -> None:
    """Of more ranks, whom more others want to leave out, than can be gone through. One after another is stopped."""
    choose = random.Random(seed)
    for _ in range(10):
        ranks = choose.randint(3, 6)
        wishes = tuple((rank, choose.randrange(ranks)) for rank in choose.sample(range(ranks), choose.randint(0, 3)))
        world = of(ranks, wishes=wishes, deaths=choose.randint(0, 2), interrupts=choose.randint(0, 2), ballots=100)
        for _ in range(30):
            stopped = choose.randrange(ranks)
            for _ in range(choose.randint(1, 60)):
                moves = [then for then in following(world) if then.ranks[stopped] == world.ranks[stopped]]
                world = choose.choice(moves or [world])
                check(world, frozenset(wish[1] for wish in wishes))
        check_ends(world, frozenset({choose.randrange(ranks)}))
