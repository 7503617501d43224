"""Ranks that are there, but stopped while a group shrinks: the others go on without them, and they hear of it."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.base.records import Proposal
from unisono.engine.memory.sub_arena import SubArena
from unisono.ranks.group import survivors


def total(group: unisono.Group) -> float:
    """A call of this group, of which all members have another part."""
    mine = torch.tensor([2.0**group.world.rank])
    unisono.all_reduce(mine, group=group)
    return mine.item()


@in_new_world(3, gives=[(3.0, [True, False]), (3.0, []), None])
def test_memory_for_a_left_out_rank_is_freed(tmp_path: Path) -> tuple[float, list[bool]] | None:
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
    with suppress(unisono.WaitTimeout):
        group.shrink(timeout_s=1.0)
    smaller = group.shrink(without=[2])
    seen = total(smaller)
    unisono.barrier()
    if smaller.rank == 0:
        os.kill(group.engine.arena.board(2).pid, signal.SIGCONT)
    until((tmp_path / "2 has heard").exists)
    return seen, [memory.returned for memory in lent]


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


@in_new_world(3, all_give=7.0)
def test_exception_after_agreement(tmp_path: Path) -> float:
    """Ranks learn of it in the first call of the smaller group, though they see it before they see the decision."""
    group, missing, find_memory = unisono.init(), survivors._missing, survivors._find_memory
    unisono.barrier()

    def find_late(*arguments: Any) -> int | None:
        lender = find_memory(*arguments)
        if lender is None:
            until(lambda: all((tmp_path / f"{rank} has looked").exists() for rank in (1, 2)))
        return lender

    def see_late(group: unisono.Group, mine: Proposal, *more: Any) -> tuple[list[int], str]:
        if mine.ready:
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
