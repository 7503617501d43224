"""Point-to-point calls between live ranks: what is sent is what is received, in order, whatever the size and layout."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.on_ranks import in_new_world, values
from tests.support.waiting import until
from unisono import WaitTimeout
from unisono.base.config import Config
from unisono.base.records import Departure, DepartureKind
from unisono.calls import p2p
from unisono.calls.p2p import Transfer, peers


@pytest.mark.ranks(2, 3, hosts="2+1")
def test_numbers_may_be_those_of_numpy() -> None:
    """Ranks, tags, colors and sizes may be integers of NumPy; what comes back is an int."""
    me, size = np.int64(unisono.get_rank()), np.int32(unisono.get_world_size())
    group, tensor = unisono.new_group(np.arange(size)), torch.tensor([int(me)])
    p2p.isend(tensor, (me + 1) % size, group, tag=np.uint8(7)).wait()
    source = p2p.recv(tensor, (me - 1) % size, group, tag=np.int64(7))
    assert (type(source), source, tensor.item()) == (int, (me - 1) % size, source)
    p2p.isend(tensor, me, tag=np.int64(1)).wait()
    assert p2p.irecv(None, me, tag=1).result().item() == source
    unisono.broadcast(tensor, size - 1, unisono.split(np.int64(0), -me))
    assert tensor.item() == size - 1
    out = torch.empty(2 * size)
    unisono.all_to_all_single(out, torch.full((2 * size,), float(me)), np.full(size, 2), torch.full((size,), 2))
    assert out.tolist() == [rank for rank in range(size) for _ in range(2)]
    assert (unisono.empty(size, 3).shape, group.empty(size).shape) == ((size, 3), (size,))
    made = unisono.empty((2, 5), dtype=torch.int64)
    assert (made.shape, made.dtype) == ((2, 5), torch.int64)


@pytest.mark.ranks(4, hosts="2x2")
def test_any_source_takes_what_was_sent_first(ranks: int | str) -> None:
    """Between hosts, what arrives first: of what was sent before anybody listened, nobody knows the order."""
    me, order = unisono.get_rank(), (2, 3, 1, 2)
    for k, sender in enumerate(order):
        if me == sender:
            p2p.send(torch.tensor([me, k]), 0)
        unisono.barrier()
    if me == 0:
        got = [p2p.irecv() for _ in order]
        sent = [[sender, k] for k, sender in enumerate(order)]
        assert [work.source_rank() for work in got] == [work.result()[0].item() for work in got]
        if isinstance(ranks, str):
            sent.sort()
            got.sort(key=Transfer.source_rank)
        assert [work.result().tolist() for work in got] == sent


@pytest.mark.ranks(2, hosts="2x1")
def test_futures_and_polling() -> None:
    me, target = unisono.get_rank(), torch.empty(4)
    work = p2p.irecv(target, 1 - me)
    heard = threading.Event()
    future = work.get_future().then(lambda done: (done.value().sum().item(), heard.set())[0])
    assert not work.is_completed()
    assert not work.is_success()
    unisono.barrier()
    sent = p2p.isend(torch.full((4,), float(me)), 1 - me)
    assert (sent.wait(), sent.source_rank(), sent.result()) == (True, me, None)
    until(work.is_completed)
    assert (work.is_success(), work.source_rank(), work.exception()) == (True, 1 - me, None)
    assert work.get_future().wait() is target
    assert heard.wait(20)
    assert future.wait() == 4.0 * (1 - me)


@pytest.mark.ranks(hosts="2x2")
def test_waiting_rank_takes_in_other_messages() -> None:
    """Rank 3 waits for rank 1, which waits for rank 0, which waits until its long message to rank 3 has gone."""
    me, word, long = unisono.get_rank(), torch.zeros(1), values(3_000_000, 0)
    if me == 0:
        p2p.send(long, 3)
        p2p.send(word, 1)
    elif me == 1:
        p2p.recv(word, 0)
        p2p.send(word, 3)
    elif me == 3:
        p2p.recv(word, 1)
        assert torch.equal(p2p.recv(None, 0), long)


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


@pytest.mark.parametrize("hosts", ["1x2", "1+1"])
@in_new_world(hosts="hosts")
def test_message_to_oneself_after_all_others(hosts: str) -> None:
    if unisono.get_rank() == 0:
        late, doomed = p2p.irecv(torch.empty(3), tag=4), p2p.irecv(torch.empty(3), 1)
        until(doomed.is_completed)  # by the thread, which has then looked at the peers of both
        with pytest.raises(unisono.PeerGone):
            doomed.wait()
        assert not late.is_completed()
        p2p.send(values(3, 0), 0, tag=4)
        assert torch.equal(late.result(), values(3, 0))


ALONE = "Only this rank itself can send that message: call isend() before, or send() in another thread."


@pytest.mark.parametrize("hosts", ["1x2", "1+1"])
@in_new_world(hosts="hosts", config=Config(stall_warning_s=0.03))
def test_wait_for_oneself_is_told(hosts: str) -> None:
    """In the world, where it has sent another tag, and in a group of one rank, from any source. Receives in the
    background go on, and end well.
    """
    me, given = unisono.get_rank(), torch.empty(3)
    alone = next(group for group in [unisono.new_group([rank]) for rank in range(2)] if group)
    p2p.isend(values(3, me), me, tag=31).wait()
    for group, src, sent in ((unisono.init(), me, f" Rank {me} has sent tag 31."), (alone, None, "")):
        rank, how = group.rank, {"src": src, "group": group, "tag": 5, "timeout_s": 0.2}
        late = p2p.irecv(torch.empty(3), src, group, tag=7)
        (several,) = p2p.batch_isend_irecv([p2p.P2POp(p2p.irecv, torch.empty(3), rank, group, 9)])
        calls: dict[str, Callable[[], object]] = {
            f"recv(float32[3], src={src}, tag=5)": partial(p2p.recv, given, **how),
            f"recv_object_list(1 objects, src={src}, tag=5)": partial(p2p.recv_object_list, [None], **how),
            f"irecv(float32[3], src={src}, tag=7)": partial(late.wait, 0.2),
            f"irecv(float32[3], src={rank}, tag=9)": partial(several.wait, 0.2),
        }
        for call, wait in calls.items():
            with redirect_stderr(StringIO()) as said, pytest.raises(WaitTimeout) as caught:
                wait()
            assert (caught.value.missing, caught.value.waiting) == ((), rank)
            assert f"{ALONE}{sent}" in str(caught.value)
            assert call in str(caught.value)
            (warning,) = said.getvalue().splitlines()
            assert warning.startswith(f"unisono: rank {me} has waited ")
            assert warning.endswith(" for a message from itself: no other rank can send it")
            assert call in warning
        for work, tag in ((late, 7), (several, 9)):
            p2p.isend(values(3, me + tag), rank, group, tag).wait()
            assert torch.equal(work.result(), values(3, me + tag))
    p2p.recv(None, me, tag=31)


@pytest.mark.parametrize("hosts", ["1x2", "1+1"])
@in_new_world(hosts="hosts", config=Config(stall_warning_s=0.05))
def test_another_thread_ends_a_wait_for_oneself(hosts: str) -> None:
    me = unisono.get_rank()
    with redirect_stderr(StringIO()) as said, ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (until(said.getvalue), p2p.send(values(5, me), me)))
        assert torch.equal(p2p.recv(None, me), values(5, me))
    assert len(said.getvalue().splitlines()) == 1


@pytest.mark.ranks(2, backend="unisono")
def test_torch_receive_alone_raises() -> None:
    mine = [dist.new_group([rank], timeout=timedelta(seconds=0.2)) for rank in range(2)][dist.get_rank()]
    with pytest.raises(WaitTimeout, match="Only this rank itself can send"):
        dist.recv(torch.empty(3), None, mine)
