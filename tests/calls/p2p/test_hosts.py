"""Messages between ranks of several hosts: what is different from one, and all of it at once."""

import time
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from tests.support.values import values
from tests.support.waiting import until
from unisono.base.records import Departure, DepartureKind
from unisono.calls import p2p
from unisono.calls.p2p import peers

LONG = 3_000_000


@pytest.mark.ranks(hosts="2x2")
def test_long_messages_between_all_at_once() -> None:
    """Everybody sends to everybody before anybody receives; then to a rank of the other host, in blocking calls."""
    me, size = unisono.get_rank(), unisono.get_world_size()
    others = [(me + k) % size for k in range(1, size)]
    sends = [p2p.isend(values(LONG + me, 10 * me + to), to) for to in others]
    for by in others:
        assert torch.equal(p2p.recv(None, by), values(LONG + by, 10 * by + me))
    for work in sends:
        work.wait()
    across = (me + 2) % size
    p2p.send(values(LONG + me, 10 * me), across, tag=1)
    assert torch.equal(p2p.recv(None, across, tag=1), values(LONG + across, 10 * across))


@pytest.mark.ranks(hosts="2x2")
def test_waiting_rank_takes_in_other_messages() -> None:
    """Rank 3 waits for rank 1, which waits for rank 0, which waits until its long message to rank 3 has gone."""
    me, word = unisono.get_rank(), torch.zeros(1)
    if me == 0:
        p2p.send(values(LONG, 0), 3)
        p2p.send(word, 1)
    elif me == 1:
        p2p.recv(word, 0)
        p2p.send(word, 3)
    elif me == 3:
        p2p.recv(word, 1)
        assert torch.equal(p2p.recv(None, 0), values(LONG, 0))


def test_last_messages_are_awaited_in_each_run() -> None:
    """Ranks on other hosts may hear that a rank has returned before they have its last message."""
    returned = Departure(DepartureKind.RETURNED, "returned from the function")

    def receives(hours: int) -> list[bool]:
        if unisono.get_rank() == 1:
            p2p.send(values(5, 0), 0)
            p2p.send(values(5, 1), 0)
            p2p.recv(None, 0)  # it does not return before the other one has looked
            return []
        work, last = p2p.irecv(None, 1), p2p.irecv(None, 1)
        work.wait()  # so there is a stream
        may_come = []
        for hour in (hours, hours + 1):
            with patch.object(peers, "time", Mock(monotonic=lambda at=3600.0 * hour: time.monotonic() + at)):
                may_come.append(last._engine.peers.may_come(unisono.init(), last._request, 1, returned))
        last.wait()
        p2p.send(values(5, 0), 1)
        return may_come

    with unisono.World(2, hosts="1+1", timeout_s=30) as world:
        for hours in (1, 3):
            assert world.run(receives, hours)[0] == [True, False]


@in_new_world(2, hosts="1+1", timeout_s=30)
def test_ending_world_delivers_last_messages(tmp_path: Path) -> None:
    """Rank 0 closes its group, and with it all connections; rank 1 comes later."""
    group = unisono.init()
    if group.rank == 0:
        p2p.send(values(100, 3), 1)
        p2p.send(values(100_000, 4), 1)
        (tmp_path / "ends").touch()
        group.close()
        group.span.carrier.close()
        return
    until((tmp_path / "ends").exists)
    assert torch.equal(p2p.recv(None, 0), values(100, 3))
    assert torch.equal(p2p.recv(None, 0), values(100_000, 4))
