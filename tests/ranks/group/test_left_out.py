"""Ranks that are there, but stopped while a group shrinks: the others go on without them, and they hear of it."""

import itertools
import os
import random
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.ranks.group.test_survivors import kill, lend_raises, replace_lend
from tests.support.faults import FAILED
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono import PeerGone
from unisono.base.records import Proposal
from unisono.engine.memory.sub_arena import SubArena
from unisono.ranks.group import survivors


def stop_when_it_lends(group: unisono.Group) -> None:
    """Be stopped by a signal where this rank is to lend or use the memory of the smaller group."""
    replace_lend(group, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def hear_that_it_is_left_out(folder: Path, group: unisono.Group, *left_out: int) -> None:
    """Go on, long after the others have."""
    stop_when_it_lends(group)
    with pytest.raises(unisono.LeftOut, match=f"without rank {group.rank}") as caught:
        group.shrink()
    assert caught.value.failed == left_out
    (folder / f"{group.rank} has heard").touch()


def shrink_without(group: unisono.Group, stopped: set[int], why: str) -> unisono.Group:
    """Leave out whoever has not come after a second, again and again: no others than these. why: says the error.

    A rank that is not stopped may come after more than a second, too, if the processors are busy: it is waited for.
    """
    late, errors = set[int](), list[str]()
    for _ in range(10):
        try:
            smaller = group.shrink(without=late, timeout_s=1.0)
        except unisono.WaitTimeout as error:
            errors.append(str(error))
            if stopped.issuperset(error.missing):
                late.update(error.missing)
                assert re.search(why, errors[-1]), errors
        else:
            return smaller
    raise AssertionError(errors)


def total(group: unisono.Group) -> float:
    """A call of this group, of which all members have another part."""
    mine = torch.tensor([2.0**group.world.rank])
    unisono.all_reduce(mine, group=group)
    return mine.item()


def wake(folder: Path, group: unisono.Group, smaller: unisono.Group, *stopped: int) -> None:
    """Let these ranks go on once all others have made their calls, and wait until they have heard of it."""
    unisono.barrier(group=smaller)
    if smaller.rank == 0:
        for rank in stopped:
            os.kill(group.engine.arena.board(rank).pid, signal.SIGCONT)
    until(lambda: all((folder / f"{rank} has heard").exists() for rank in stopped))


@in_new_world(5, return_exceptions=True, gives=[None, None, ((2, 3), 12.0), ((2, 3), 12.0), FAILED])
def test_after_a_death_ranks_that_are_stopped_while_they_lend_the_memory_can_be_left_out(
    tmp_path: Path,
) -> tuple[tuple[int, ...], float] | None:
    """Rank 0 is stopped, and then rank 1, which is to lend it next."""
    group = unisono.init()
    kill(4)
    with pytest.raises(PeerGone):
        unisono.all_reduce(torch.ones(3))
    if group.rank < 2:
        hear_that_it_is_left_out(tmp_path, group, 0, 1, 4)
        return None
    smaller = shrink_without(group, {0, 1}, r"is to lend or use the memory, .* leave it out: shrink\(without=\[\d\]\)")
    seen = total(smaller)
    wake(tmp_path, group, smaller, 0, 1)
    return smaller.world_ranks, seen


@in_new_world(3, gives=[(3.0, [True, False]), (3.0, []), None])
def test_memory_that_was_lent_for_one_that_is_left_out_is_freed(tmp_path: Path) -> tuple[float, list[bool]] | None:
    """Rank 2 is stopped where it has agreed, and before it uses the memory that rank 0 has lent."""
    group, lent = unisono.init(), list[SubArena]()
    lender = group.engine.lender
    lend, borrow = lender.lend, lender.borrow
    unisono.barrier()

    def keep(*arguments: object) -> SubArena:
        lent.append(lend(*arguments))  # type: ignore[arg-type]  # as it was called
        return lent[-1]

    def stop_and_borrow(*arguments: object) -> SubArena:
        os.kill(os.getpid(), signal.SIGSTOP)
        return borrow(*arguments)  # type: ignore[arg-type]  # as it was called

    if group.rank == 2:
        lender.borrow = stop_and_borrow  # type: ignore[assignment, method-assign]
        with pytest.raises(unisono.LeftOut):
            group.shrink()
        (tmp_path / "2 has heard").touch()
        return None
    lender.lend = keep  # type: ignore[assignment, method-assign]
    smaller = shrink_without(group, {2}, r"is to lend or use the memory, .* leave it out: shrink\(without=\[2\]\)")
    seen = total(smaller)
    wake(tmp_path, group, smaller, 2)
    return seen, [memory.returned for memory in lent]


@in_new_world(4, hosts="2+2", gives=[0.0, 14.0, 14.0, 14.0])
def test_on_another_host_nobody_goes_on_without_those_who_wait_for_memory(tmp_path: Path) -> float:
    """Rank 0 is stopped while it lends memory on its host. Rank 2 has lent it on the other host at once."""
    group = unisono.init()
    unisono.barrier()
    if group.rank == 0:
        hear_that_it_is_left_out(tmp_path, group, 0)
        return 0.0
    smaller = shrink_without(group, {0}, r"leave it out: shrink\(without=\[0\]\)")
    seen = total(smaller)
    wake(tmp_path, group, smaller, 0)
    return seen


@in_new_world(4, hosts="2+2", gives=[7.0, 7.0, 7.0, 0.0])
def test_stopped_lender_of_another_host_is_named(tmp_path: Path) -> float:
    """Rank 2, the first of its host, has no room, and waits for rank 3, which is stopped while it lends memory."""
    group = unisono.init()
    unisono.barrier()
    if group.rank == 3:
        hear_that_it_is_left_out(tmp_path, group, 3)
        return 0.0
    if group.rank == 2:
        lend_raises(group, unisono.OutOfMemory("not here"), times=1)
    smaller = shrink_without(group, {3}, r"leave it out: shrink\(without=\[3\]\)")
    seen = total(smaller)
    wake(tmp_path, group, smaller, 3)
    return seen


@in_new_world(2, hosts="1+1")
def test_where_one_host_has_no_memory_the_others_hear_of_it(tmp_path: Path) -> None:
    group = unisono.init()
    if group.rank == 0:
        lend_raises(group, unisono.OutOfMemory("not here"))
        with pytest.raises(unisono.OutOfMemory, match="the shared memory of rank 0 is too full"):
            group.shrink()
        until((tmp_path / "heard").exists)
    else:
        with pytest.raises(unisono.PeerFailed, match="OutOfMemory: the shared memory of rank 0 is too full") as caught:
            group.shrink()
        assert caught.value.rank == 0
        (tmp_path / "heard").touch()


@in_new_world(2, all_give=3.0)
def test_words_about_an_earlier_call_do_not_count() -> float:
    """The first call of both ranks has failed. Rank 0 is in its second one when rank 1 still says so."""
    group = unisono.init()
    board = group.engine.arena.board
    board(group.rank).set_attempt(1, "OutOfMemory")
    unisono.barrier()
    if group.rank == 1:
        until(lambda: board(0).attempt[0] == 2 and board(0).proposal is not None)
        time.sleep(0.1)
    return total(group.shrink())


@pytest.mark.parametrize("late", [False, True])
@in_new_world(3, all_give=7.0)
def test_exception_after_agreement(tmp_path: Path, late: bool) -> float:
    """Ranks learn of it in the first call of the smaller group, also if they see it before they see the decision."""
    group, missing, find_memory = unisono.init(), survivors._missing, survivors._find_memory
    unisono.barrier()

    def find_late(*arguments: Any) -> int | None:
        lender = find_memory(*arguments)
        if late and lender is None:
            until(lambda: all((tmp_path / f"{rank} has looked").exists() for rank in (1, 2)))
        return lender

    def see_late(group: unisono.Group, mine: Proposal, *more: Any) -> tuple[list[int], str]:
        if mine.ready and late:
            (tmp_path / f"{group.rank} has looked").touch()
            until(lambda: group.engine.arena.board(0).attempt[1] != "")
        return missing(group, mine, *more)

    if group.rank == 0:
        changed = patch.multiple(survivors, _go_on=interrupt, _find_memory=find_late)
        with changed, pytest.raises(KeyboardInterrupt):
            group.shrink()
        until(lambda: all((tmp_path / name).exists() for name in "12"))
        smaller = group.shrink()
    else:
        with patch.object(survivors, "_missing", see_late):
            smaller = group.shrink()
        with pytest.raises(unisono.PeerFailed, match=r"KeyboardInterrupt in shrink\(\)") as caught:
            unisono.barrier()
        assert caught.value.rank == 0
        (tmp_path / str(group.rank)).touch()
    return total(smaller.shrink())


def interrupt(*_: object) -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def pause(group: unisono.Group, moment: int) -> None:
    """Be stopped, and go on a little later, where this rank tells something of the agreement for this time."""
    board_of, me, told = group.engine.arena.board, os.getpid(), itertools.count()

    class Pausing:
        def __getattr__(self, name: str) -> object:
            return getattr(board_of(group.rank), name)

        def set_proposal(self, *arguments: object) -> None:
            board_of(group.rank).set_proposal(*arguments)  # type: ignore[arg-type]  # as it was called
            if next(told) == moment:
                os.kill(me, signal.SIGSTOP)

    pausing = Pausing()
    group.engine.arena.board = lambda rank: pausing if rank == group.rank else board_of(rank)  # type: ignore[method-assign, assignment, return-value]  # what it does


@pytest.mark.parametrize("hosts", [None, "2+2"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])
def test_ranks_are_stopped_and_go_on_at_any_moment(seed: int, hosts: str | None) -> None:
    """All who return have the same members, and all others hear that they are left out."""

    def rounds() -> list[tuple[int, ...]]:
        world, choose, seen = unisono.init(), random.Random(seed), list[tuple[int, ...]]()
        pids = [torch.zeros(1, dtype=torch.int64) for _ in range(4)]
        unisono.all_gather(pids, torch.tensor([os.getpid()]))
        ended = threading.Event()

        def wake() -> None:
            while not ended.wait(0.2):
                for pid in pids[:3]:
                    os.kill(int(pid), signal.SIGCONT)

        if world.rank == 3:  # it is not stopped
            threading.Thread(target=wake, daemon=True).start()
        for _ in range(6):
            group = unisono.new_group(range(4))
            moments = [choose.randrange(5) for _ in range(3)]
            if world.rank < 3:
                pause(group, moments[world.rank])
            unisono.barrier()
            late = set[int]()
            while True:
                try:
                    smaller = group.shrink(without=late, timeout_s=choose.choice([0.02, 0.05, 0.3]))
                except unisono.WaitTimeout as error:
                    late.update(error.missing)
                except unisono.LeftOut:
                    seen.append(())
                    break
                else:
                    seen.append(smaller.world_ranks)
                    break
        unisono.barrier()
        ended.set()
        return seen

    for one in zip(*unisono.run(rounds, 4, hosts=hosts, timeout_s=60), strict=True):
        there = {members for members in one if members}
        assert len(there) <= 1
        assert {rank for rank in range(4) if one[rank]} == set(*there)
