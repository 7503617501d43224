"""`group.abort`: every wait of every kind ends on all ranks, with the rank that has aborted and its reason."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from tests.support.waiting import WAITS, once_waiting, until
from unisono import PeerFailed, PeerGone
from unisono.calls import p2p

Call = Callable[[], Any]
CALLS: dict[str, Call] = {
    "a call, by its future": lambda: unisono.all_reduce(torch.ones(3), async_op=True).get_future().wait(),
    "behind the background": lambda: (unisono.barrier(async_op=True), unisono.all_reduce(torch.ones(3))),
    "recv from any": lambda: p2p.recv(),
    "recv_object_list": lambda: p2p.recv_object_list([None], 1),
    "irecv, by its future": lambda: p2p.irecv(None, 1).get_future().wait(),
    "split": lambda: unisono.split(0),
}
"""Calls that end only if rank 1 makes one, too. Scenes of `tests.fuzz` have others."""


def failure(call: Call) -> PeerFailed:
    with pytest.raises(PeerFailed) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(("name", "ctrl_c"), [*((name, False) for name in CALLS), ("behind the background", True)])
@in_new_world(2)
def test_wait_ends_by_abort_or_ctrl_c(name: str, ctrl_c: bool, tmp_path: Path) -> None:
    group, places = unisono.init(), WAITS | {torch.futures.Future.wait.__code__}
    if group.rank == 0 and ctrl_c:
        once_waiting(lambda: os.kill(os.getpid(), signal.SIGINT), places)
        with pytest.raises(KeyboardInterrupt):
            CALLS[name]()
    elif group.rank == 0:
        once_waiting((tmp_path / "waits").touch, places)
        assert failure(CALLS[name]).rank == 1
    elif ctrl_c:
        until(lambda: group.engine.arena.board(0).gave_up.number > 0)
        until(lambda: not group.engine.signature(0, group.engine.call_number))
    else:
        until((tmp_path / "waits").exists)
        group.abort("no more data")
    error = failure(unisono.barrier)
    assert (error.rank, error.reason) == (
        (0, "interrupted by KeyboardInterrupt") if ctrl_c else (1, "aborted group 'world': no more data")
    )


@in_new_world(2)
def test_abort_while_a_rank_looks_at_its_peers(tmp_path: Path) -> None:
    group: Any = unisono.init()
    if group.rank == 1:
        until((tmp_path / "looks").exists)
        group.abort("enough")
        return
    seen = group.liveness.gone

    def gone(rank: int) -> Any:
        (tmp_path / "looks").touch()
        until(lambda: seen(rank))
        return seen(rank)

    group.liveness.gone = gone
    assert failure(lambda: p2p.recv(None, 1)).reason == "aborted group 'world': enough"


@pytest.mark.parametrize("how", ["abort", "exception"])
@pytest.mark.parametrize("hosts", [None, "1+1"])
@in_new_world(2, hosts="hosts", return_exceptions=True, gives=[None, ANY])
def test_reason_with_a_surrogate_reaches_the_others(how: str, hosts: str | None) -> None:
    """As in a message with the name of a file that is not UTF-8. It is escaped."""
    if unisono.get_rank():
        if how == "exception":
            raise ValueError("\ud800")
        unisono.init().abort("\ud800")
    else:
        with pytest.raises(PeerFailed if how == "abort" else PeerGone, match=r"\\ud800"):
            unisono.all_reduce(torch.ones(2))


@in_new_world(3, all_give=6.0)
def test_abort_of_a_sub_group_spares_the_world() -> float:
    world = unisono.init()
    pair = unisono.new_group([0, 2], name="pair")
    if isinstance(pair, unisono.Group):
        if world.rank == 2:
            pair.abort("done")
            pair.abort("again")
        error = failure(lambda: unisono.all_reduce(torch.ones(3), group=pair))
        assert (error.rank, error.reason) == (1, "aborted group 'pair': done")
        assert "rank 1 (world rank 2) aborted group 'pair': done" in str(error)
        p2p.sendrecv(torch.ones(2), 2 - world.rank, torch.ones(2), 2 - world.rank)
    tensor = torch.full((3,), 1.0 + world.rank)
    unisono.all_reduce(tensor)
    return tensor[0].item()


@pytest.mark.ranks(2)
def test_a_closed_group_has_nothing_to_abort() -> None:
    group = unisono.new_group()
    assert isinstance(group, unisono.Group)
    group.close()
    group.abort()
    assert group.broken is None
    unisono.barrier()
