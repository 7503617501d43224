"""Messages by UCX between real processes: what happens when they do not come. Calls use them elsewhere."""

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed import Store

import unisono
from tests.support.on_ranks import in_world
from tests.support.waiting import until
from unisono.base.errors import InternalError
from unisono.engine.carrier import Lost
from unisono.hosts.carriers import ucx
from unisono.hosts.carriers.ucx import UcxCarrier

LATE_S = 20.0


def carrier_of(folder: Path) -> UcxCarrier:
    """Every rank's end of one carrier."""
    me, size = unisono.get_rank(), unisono.get_world_size()
    store = torch.distributed.FileStore(str(folder / "store"), size)
    return UcxCarrier(store, me, size, "127.0.0.1", LATE_S)


def only(peers: list[int]) -> type[UcxCarrier]:
    """A carrier that connects to these ranks only."""

    class Some(UcxCarrier):
        def _connect(self, store: Store, _: Sequence[int], *limits: Any) -> None:
            super()._connect(store, peers, *limits)

    return Some


def word(value: int = 0) -> torch.Tensor:
    return torch.full((8,), value, dtype=torch.uint8)


@in_world(2)
def test_idle_connections_are_not_given_up(tmp_path: Path) -> None:
    """By default, UCX lets TCP end a connection whose link is cut for six seconds; a job may allow longer cuts."""
    carrier = carrier_of(tmp_path)
    kept = [socket.socket(fileno=os.dup(number)) for number in tcp_connections()]
    assert kept
    assert not any(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for one in kept)
    unisono.barrier()
    carrier.close()


def tcp_connections() -> Iterator[int]:
    """The descriptors of this process's TCP connections."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername():
                yield number


@pytest.mark.long
@in_world(2, gives=[20, 40])
def test_abandoned_messages_block_nobody(tmp_path: Path) -> int:
    carrier, peer = carrier_of(tmp_path), 1 - unisono.get_rank()
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
def test_closing_ignores_messages_of_failed_calls(tmp_path: Path) -> None:
    """The receiver of a message never takes it."""
    carrier, peer = carrier_of(tmp_path), 1 - unisono.get_rank()
    for nbytes in (8, 1 << 20):
        sent, got = (torch.zeros(nbytes, dtype=torch.uint8) for _ in range(2))
        carrier.give_up([carrier.isend(peer, 5, sent), carrier.irecv(peer, 6, got)])
    unisono.barrier()
    with patch.object(ucx, "_LAST_S", 2 * LATE_S):
        closing = threading.Thread(target=carrier.close)
        closing.start()
        closing.join(LATE_S)
        assert not closing.is_alive()


@in_world(2)
def test_dropped_carrier_ends_despite_messages(tmp_path: Path) -> None:
    me = unisono.get_rank()
    for turn in range(2):
        (tmp_path / str(turn)).mkdir(exist_ok=True)
        carrier = carrier_of(tmp_path / str(turn))
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
def test_a_peer_that_cannot_be_reached_is_named(tmp_path: Path) -> int:
    me = unisono.get_rank()
    store = torch.distributed.FileStore(str(tmp_path / "store"), 2)
    if me == 1:  # its carrier says that it will have nothing to do with rank 0
        carrier = only([])(store, me, 2, "127.0.0.1", LATE_S)
        unisono.barrier()
        carrier.close()
        return 0
    with pytest.raises(Lost) as lost:
        UcxCarrier(store, me, 2, "127.0.0.1", 0.5)
    unisono.barrier()
    return lost.value.peer


@pytest.mark.parametrize("silent", [False, True], ids=["never comes", "says nothing"])
def test_limit_covers_all_connections(silent: bool) -> None:
    """Rank 1 comes after 15 of 20 seconds, and then rank 2 is missing: rank 0 does not begin to count anew.

    Its clock goes on by a tenth of a second with each look.
    """
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    first, second = only([0] if silent else []), only([])
    ends, now = [second(store.clone(), 2, 3, "127.0.0.1", LATE_S)] if silent else [], [0.0]
    late = threading.Thread(target=lambda: ends.append(first(store.clone(), 1, 3, "127.0.0.1", LATE_S)))

    def look() -> None:
        if not now[0]:
            late.start()
            until(lambda: store.check(["ucx 1"]))
            now[0] = 15.0
        elif not silent or not late.is_alive():  # rank 1 has been heard
            now[0] += 0.1

    with patch.object(ucx, "time", SimpleNamespace(monotonic=lambda: now[0])), pytest.raises(Lost) as lost:
        UcxCarrier(store.clone(), 0, 3, "127.0.0.1", 20.0, look)
    late.join()
    assert lost.value.peer == 2
    assert now[0] < 21.0


@in_world(2, gives=[7, 7])
def test_a_forked_process_has_no_carrier(tmp_path: Path) -> int:
    """Also where another thread is in the carrier meanwhile."""
    carrier, got = carrier_of(tmp_path), word()
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
