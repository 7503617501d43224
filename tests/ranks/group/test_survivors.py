"""After a rank has died: the survivors name it, and go on in a smaller group."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from tests.support.ports import free_port
from tests.support.programs import Python, place
from tests.support.waiting import until
from unisono import RankFailed


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
    unisono.barrier(group=pair)  # type: ignore[arg-type]  # both are members
    mine, group.timeout_s = torch.tensor([1.0 + group.rank]), 45.0
    smaller = group.shrink(without=[2])
    unisono.all_reduce(mine, group=smaller)
    assert (mine.item(), smaller.timeout_s) == (3.0, 45.0)
    with pytest.raises(unisono.PeerFailed, match="replaced by group 'ranks 0, 1'"):
        unisono.barrier(group=group)
    (tmp_path / "went on").touch()
    return "went on"


@in_new_world(2, gives=[3.0, 3.0])
def test_aborting_rank_is_awaited_in_a_new_group() -> float:
    group = unisono.init()
    boards = [group.engine.arena.board(rank) for rank in range(2)]
    page = group.engine.arena.board(1)  # type: ignore[union-attr]  # of the world
    if group.rank == 0:
        group.abort("again, please")
    with pytest.raises(unisono.PeerFailed, match="again, please"):
        unisono.barrier()
    group = group.shrink()
    mine = torch.tensor([2.0**group.rank])
    if group.rank == 0:
        until(lambda: page.wait is not None or group.engine.arena.board(1).gave_up.number > 0)
    unisono.all_reduce(mine)
    assert boards[0].gone is not None
    return mine.item()


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


def replace_lend(group: unisono.Group, act: Callable[[], object]) -> None:
    """Do this first where this rank lends the memory of the smaller group."""
    lender = group.engine.lender
    lend = lender.lend

    def act_and_lend(*args: Any) -> Any:
        act()
        return lend(*args)

    lender.lend = act_and_lend  # type: ignore[method-assign]


def lend_raises(group: unisono.Group, error: BaseException, times: int = 99) -> None:
    errors = [error] * times

    def fail() -> None:
        if errors:
            raise errors.pop()

    replace_lend(group, fail)


@pytest.mark.parametrize("waits_for", ["its agreement", "its memory"])
@in_new_world(2)
def test_who_waits_long_looks_seldom(waits_for: str, tmp_path: Path) -> None:
    """About 300 times in a second; 5,000 looks would take a tenth of a processor."""
    group, looks = unisono.init(), []
    unisono.barrier()

    def come_late() -> None:
        until((tmp_path / "late").exists)

    if group.rank == 1:
        left = group.liveness.left
        group.liveness.left = lambda rank: looks.append(rank) or left(rank)  # type: ignore[method-assign, func-returns-value]
        with pytest.raises(unisono.WaitTimeout):
            group.shrink(timeout_s=1.0)
        (tmp_path / "late").touch()
    elif waits_for == "its memory":
        replace_lend(group, come_late)
    else:
        come_late()
    unisono.barrier(group.shrink())
    assert len(looks) < 600


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
@in_new_world(3, all_give=7.0)
def test_exception_in_shrink_is_told_to_others(failure: type[BaseException], tmp_path: Path) -> float:
    """They wait for that rank when they call it again, with a limit, and go on with it once it does so, too."""
    group = unisono.init()
    unisono.barrier()
    if group.rank == 0:
        lend_raises(group, failure("not here"), times=1)
        with pytest.raises(failure, match="not here"):
            group.shrink()
        until(lambda: all((tmp_path / name).exists() for name in "12"))
    else:
        with pytest.raises(unisono.PeerFailed, match=f"{failure.__name__}: not here. Call shrink") as caught:
            group.shrink()
        assert (caught.value.rank, caught.value.whole) == (0, False)
        (tmp_path / f"{group.rank} has heard").touch()
        until(lambda: all((tmp_path / f"{rank} has heard").exists() for rank in (1, 2)))
        with pytest.raises(unisono.WaitTimeout, match=f"On rank 0, {failure.__name__}: not here") as late:
            group.shrink(timeout_s=0.1)
        assert 0 in late.value.missing
        (tmp_path / str(group.rank)).touch()
    mine = torch.tensor([2.0**group.rank])
    unisono.all_reduce(mine, group=group.shrink())
    return mine.item()


def test_ranks_that_there_are_not() -> None:
    with unisono.World(1) as world, pytest.raises(RankFailed, match="rank 7 is not in group"):
        world.run(lambda: unisono.init().shrink(without=[7]))
    with unisono.World(1) as world, pytest.raises(RankFailed, match="without: got int, expected a list of ranks"):
        world.run(lambda: unisono.init().shrink(without=3))


SCRIPT = """
import os, signal, sys, torch, unisono
group = unisono.init()
mine = torch.tensor([2.0 ** group.rank])
unisono.barrier()
if group.rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    unisono.all_reduce(mine.clone())
except unisono.PeerGone as error:
    group = group.shrink()
    unisono.all_reduce(mine)
    print(error.failed, group.rank, mine.item())
"""


def test_without_rank_0_and_its_store(python: Python, tmp_path: Path) -> None:
    """Processes that meet at a store which rank 0 serves."""
    script, port = tmp_path / "train.py", free_port()
    script.write_text(SCRIPT)
    ranks = [python(script, **place(rank, 3, port)) for rank in range(3)]
    said = [rank.communicate(timeout=90)[0].strip() for rank in ranks]
    assert said == ["", "(0,) 0 6.0", "(0,) 1 6.0"]
    assert [rank.returncode for rank in ranks] == [-signal.SIGKILL, 0, 0]
