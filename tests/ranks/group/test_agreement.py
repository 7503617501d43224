"""The agreement of survivors: every interleaving of few ranks, random ones of more. All who decide, decide the same."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from unisono.base.records import Proposal
from unisono.ranks.group.agreement import next_proposal

pytestmark = pytest.mark.quick


class Rank(NamedTuple):
    """told: what others read. seen: what it has read of them in this look, as far as it is. gone: whom it saw gone."""

    told: Proposal | None = None
    begun: bool = False
    gone: frozenset[int] = frozenset()
    seen: tuple[Proposal | None, ...] = ()


class World(NamedTuple):
    """A state of all ranks. Reading one other rank, telling, beginning and dying are steps of their own."""

    ranks: tuple[Rank, ...]
    dead: frozenset[int]


def following(world: World, deaths: int) -> Iterator[World]:
    """All states that may come next."""
    for me, rank in enumerate(world.ranks):
        if me in world.dead:
            continue
        if len(world.dead) < deaths:
            yield world._replace(dead=world.dead | {me})
        if rank.told and rank.told.decided:
            continue
        others = [other for other in range(len(world.ranks)) if other != me]
        if not rank.begun:
            if world.dead:
                yield replaced(world, me, rank._replace(begun=True, gone=world.dead))
        elif len(rank.seen) < len(others):
            yield replaced(world, me, rank._replace(seen=(*rank.seen, world.ranks[others[len(rank.seen)]].told)))
        else:
            told = next_proposal(rank.told, dict(zip(others, rank.seen, strict=True)), rank.gone)
            yield replaced(world, me, Rank(told, True, world.dead))


def replaced(world: World, me: int, rank: Rank) -> World:
    """The world with another state of this rank."""
    return world._replace(ranks=(*world.ranks[:me], rank, *world.ranks[me + 1 :]))


def decided(world: World) -> set[frozenset[int]]:
    """What has been decided by anybody, also by those who have died since."""
    return {rank.told.failed for rank in world.ranks if rank.told and rank.told.decided}


@pytest.mark.parametrize(("ranks", "deaths"), [(2, 1), (3, 2), pytest.param(4, 2, marks=pytest.mark.long)])
def test_all_interleavings(ranks: int, deaths: int) -> None:
    start = World((Rank(),) * ranks, frozenset())
    known, open_ = {start}, [start]
    while open_:
        world = open_.pop()
        assert len(decided(world)) <= 1, world
        for choice in decided(world):
            assert choice <= world.dead, "who lives has not failed"
        for then in following(world, deaths):
            if then not in known:
                known.add(then)
                open_.append(then)
    assert any(decided(world) for world in known)
    assert len(known) > 10


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(4, 7), st.randoms(use_true_random=False))
def test_random_interleavings_end_with_one_decision(ranks: int, random: object) -> None:
    choose = random.choice  # type: ignore[attr-defined]
    world = World((Rank(),) * ranks, frozenset())
    for _ in range(4000):
        # Ranks die at first only, and one of them stays.
        states = list(following(world, deaths=choose([1, 2, ranks - 1])))
        living = [rank for k, rank in enumerate(world.ranks) if k not in world.dead]
        if not states or (world.dead and all(rank.told and rank.told.decided for rank in living)):
            break
        world = choose(states)
        assert len(decided(world)) <= 1
    living = [rank for k, rank in enumerate(world.ranks) if k not in world.dead]
    assert all(rank.told and rank.told.decided for rank in living) or not world.dead


def test_who_comes_later_takes_what_was_decided() -> None:
    said = Proposal(frozenset({2}), decided=True)
    assert next_proposal(None, {0: said, 2: None, 3: None}, {2, 3}) == said


def test_a_proposal_is_told_before_anything_is_decided() -> None:
    told = next_proposal(None, {1: None}, {1})
    assert told == Proposal(frozenset({1}))
    assert next_proposal(told, {1: None}, {1}) == told._replace(decided=True)
