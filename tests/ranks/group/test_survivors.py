"""Ranks that are late or stopped while a group shrinks: the others name them, and go on without them."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from tests.support.waiting import once, until
from unisono.engine.memory.sub_arena import SubArena


@in_new_world(3, gives=["went on", "went on", "left out"])
def test_absent_rank_is_named_and_left_out(tmp_path: Path) -> str:
    group, pair = unisono.init(), unisono.new_group([0, 1])
    if group.rank == 2:
        with pytest.raises(unisono.PeerFailed, match="goes on in a smaller group"):
            unisono.barrier()
        until((tmp_path / "went on").exists)
        with pytest.raises(unisono.LeftOut, match="have gone on without rank 2") as caught:
            group.shrink()
        assert caught.value.failed == (2,)
        return "left out"
    with pytest.raises(unisono.WaitTimeout) as late:
        group.shrink(timeout_s=0.1)
    assert 2 in late.value.missing
    unisono.barrier(group=pair)
    mine, group.timeout_s = torch.tensor([1.0 + group.rank]), 45.0
    smaller = group.shrink(without=[2])
    unisono.all_reduce(mine, group=smaller)
    assert (mine.item(), smaller.timeout_s) == (3.0, 45.0)
    with pytest.raises(unisono.PeerFailed, match="replaced by group 'ranks 0, 1'"):
        unisono.barrier(group=group)
    (tmp_path / "went on").touch()
    return "went on"


@pytest.mark.parametrize("hosts", [None, "1+1"])
@in_new_world(2, hosts="hosts", all_give=11.0)
def test_other_call_hears_that_others_shrink(hosts: str | None) -> float:
    """Nobody has gone: rank 0 has been interrupted in a message, say, and rank 1 knows nothing of it."""
    me, group = unisono.get_rank(), unisono.init()
    unisono.barrier()
    if me == 1:
        with pytest.raises(unisono.PeerFailed, match="goes on in a smaller group") as caught:
            unisono.barrier()
        assert caught.value.rank == 0
    tensor = torch.full((3,), 10.0**me)
    unisono.all_reduce(tensor, group=group.shrink())
    return tensor[1].item()


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
        lent.append(lend(*arguments))
        return lent[-1]

    def stop_and_borrow(*arguments: object) -> SubArena:
        os.kill(os.getpid(), signal.SIGSTOP)
        return borrow(*arguments)

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


@in_new_world(2, all_give=3.0)
def test_interrupted_shrink_is_told() -> float:
    """The other rank waits for it when it makes the call again, with a limit, and goes on with it."""
    group = unisono.init()
    proposal = lambda rank: group.engine.arena.board(rank).proposal  # noqa: E731
    if group.rank == 0:
        once(lambda: proposal(0) is not None, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            group.shrink()
        until(lambda: group.engine.arena.board(1).attempt[0] == 3)
    else:
        until(lambda: group.engine.arena.board(0).attempt[1])
        with pytest.raises(unisono.PeerFailed, match=r"KeyboardInterrupt\. Call shrink") as caught:
            group.shrink()
        assert (caught.value.rank, caught.value.whole) == (0, False)
        with pytest.raises(unisono.WaitTimeout, match="On rank 0, KeyboardInterrupt") as late:
            group.shrink(timeout_s=0.1)
        assert late.value.missing == (0,)
    return total(group.shrink())
