"""Messages by Gloo and by UCX between real processes: what happens when they do not come. Calls use them elsewhere."""

import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.message_runs import cut, tag, tape_of
from tests.support.on_ranks import in_world
from tests.support.ucx import why_no_ucx
from unisono.base.errors import InternalError
from unisono.engine.carrier import Lost
from unisono.engine.reducers import combine_address
from unisono.hosts.carriers.gloo import GlooCarrier, _GlooHandle
from unisono.hosts.carriers.ucx import UcxCarrier
from unisono.hosts.messages import Tags, lower
from unisono.schedule.algorithms import CATALOGUE

Kind = type[GlooCarrier] | type[UcxCarrier]


LATE_S = 20.0


def test_gloo_waits_outlast_every_job() -> None:
    """Gloo ends all connections of a group when a wait runs out of time."""
    limits: list[timedelta] = []
    _GlooHandle(SimpleNamespace(wait=limits.append), 1, torch.ones(1), set()).settle()
    assert limits[0] > timedelta(days=365)


@pytest.fixture(params=[GlooCarrier, UcxCarrier], ids=["gloo", "ucx"])
def kind(request: pytest.FixtureRequest) -> Kind:
    made: Kind = request.param
    if made is UcxCarrier and (reason := why_no_ucx()):
        pytest.skip(reason)
    return made


def carrier_of(kind: Kind, folder: Path) -> GlooCarrier | UcxCarrier:
    """Every rank's end of one carrier."""
    me, size = unisono.get_rank(), unisono.get_world_size()
    store = torch.distributed.FileStore(str(folder / "store"), size)
    return kind(store, me, size, "127.0.0.1", LATE_S)


def only(kind: Kind, peers: list[int]) -> Any:
    """A carrier that connects to these ranks only."""

    class Some(kind):  # type: ignore[misc, valid-type]
        def _connect(self, *args: Any) -> None:
            super()._connect(*(type(arg)(peers) if isinstance(arg, set | list) else arg for arg in args))

    return Some


def word(value: int = 0) -> torch.Tensor:
    return torch.full((8,), value, dtype=torch.uint8)


@pytest.mark.long
@in_world(2, gives=[20, 40])
def test_abandoned_messages_block_nobody(kind: Kind, tmp_path: Path) -> int:
    carrier, peer = carrier_of(kind, tmp_path), 1 - unisono.get_rank()
    left = [carrier.isend(peer, 1000 + k, torch.zeros(1 << 16, dtype=torch.uint8)) for k in range(10)]
    left += [carrier.irecv(peer, 2000 + k, word()) for k in range(10)]
    send, got = carrier.isend(peer, 7, word(peer + 1)), word()
    carrier.irecv(peer, 7, got).settle()
    send.settle()
    unisono.barrier()
    carrier.close()
    with pytest.raises(Lost, match="this rank has closed its carrier"):
        carrier.isend(peer, 8, word())
    return len(left) * int(got[0])


@in_world(2)
def test_closing_ignores_messages_of_failed_calls(kind: Kind, tmp_path: Path) -> None:
    """The two ranks take part in two calls; the receiver of each message never takes it."""
    carrier, me = carrier_of(kind, tmp_path), unisono.get_rank()
    for name in ("all_reduce.circulant", "broadcast.linear"):
        schedule = CATALOGUE[name].schedule(2)
        chunks, combine = cut(torch.ones(1000), schedule.chunks), combine_address("float32", "sum", last=False)
        run = tape_of(carrier, lower(schedule)[me], range(2), chunks, combine, 1 + me, Tags(tag))
        run.advance()
        run.give_up()
    unisono.barrier()
    with patch.object(sys.modules[kind.__module__], "_LAST_S", 2 * LATE_S):
        closing = threading.Thread(target=carrier.close)
        closing.start()
        closing.join(LATE_S)
        assert not closing.is_alive()


@in_world(2)
def test_a_profiler_does_not_see_messages(tmp_path: Path) -> None:
    """The record of a message that outlives its profile would be written where the profile was."""
    from torch.profiler import profile

    carrier, me = carrier_of(GlooCarrier, tmp_path), unisono.get_rank()
    with profile() as seen:
        torch.ones(3).neg()
        handles = [carrier.irecv(1 - me, 1, word()), carrier.isend(1 - me, 1, word())]
    for handle in handles:
        handle.settle()
    unisono.barrier()
    names = [event.name for event in seen.events()]
    assert "aten::neg" in names
    assert not [name for name in names if "gloo" in name]


@in_world(2)
def test_dropped_carrier_ends_despite_messages(kind: Kind, tmp_path: Path) -> None:
    me = unisono.get_rank()
    for turn in range(2):
        (tmp_path / str(turn)).mkdir(exist_ok=True)
        carrier = carrier_of(kind, tmp_path / str(turn))
        carrier.irecv(1 - me, 5, word())
        if turn == me:
            carrier.isend(1 - me, 5, word())
        unisono.barrier()
        forgetting = threading.Thread(target=[carrier].clear)
        del carrier
        forgetting.start()
        forgetting.join(LATE_S)
        assert not forgetting.is_alive()


@in_world(2, gives=[1, 0])
def test_a_peer_that_cannot_be_reached_is_named(kind: Kind, tmp_path: Path) -> int:
    me = unisono.get_rank()
    store = torch.distributed.FileStore(str(tmp_path / "store"), 2)
    if me == 1:  # its carrier says that it will have nothing to do with rank 0
        carrier = only(kind, [])(store, me, 2, "127.0.0.1", LATE_S)
        unisono.barrier()
        carrier.close()
        return 0
    with pytest.raises(Lost) as lost:
        kind(store, me, 2, "127.0.0.1", 0.5)
    unisono.barrier()
    return lost.value.peer


@pytest.mark.parametrize("silent", [False, True], ids=["never comes", "says nothing"])
def test_limit_covers_all_connections(kind: Kind, silent: bool) -> None:
    """Rank 1 comes late, and then rank 2 is missing: rank 0 does not begin to count anew."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ends = [only(kind, [])(store.clone(), 2, 3, "127.0.0.1", LATE_S)] if silent else []

    def come() -> None:
        time.sleep(1.5)
        ends.append(only(kind, [0])(store.clone(), 1, 3, "127.0.0.1", LATE_S))

    late = threading.Thread(target=come)
    late.start()
    began = time.monotonic()
    with pytest.raises(Lost) as lost:
        kind(store.clone(), 0, 3, "127.0.0.1", 2.0)
    took_s = time.monotonic() - began
    late.join()
    assert lost.value.peer == 2
    assert took_s < 3.3


@in_world(2, gives=[7, 7])
def test_a_forked_process_has_no_carrier(kind: Kind, tmp_path: Path) -> int:
    """Also where another thread is in the carrier meanwhile."""
    carrier, got = carrier_of(kind, tmp_path), word()
    waiting = threading.Thread(target=carrier.irecv(1 - unisono.get_rank(), 6, got).settle)
    waiting.start()
    child = os.fork()
    if not child:
        try:
            carrier.isend(1 - unisono.get_rank(), 5, word())
        except InternalError:
            os._exit(7)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    unisono.barrier()
    carrier.isend(1 - unisono.get_rank(), 6, word(code)).settle()
    waiting.join(LATE_S)
    unisono.barrier()
    carrier.close()
    return int(got[0])
