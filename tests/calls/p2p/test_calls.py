"""Point-to-point calls between live ranks: what is sent is what is received, in order, whatever the size and layout."""

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.on_ranks import in_new_world
from tests.support.values import values
from tests.support.waiting import until
from unisono import ArgumentError, DTypeError, WaitTimeout
from unisono.base.config import Config
from unisono.base.records import Departure, DepartureKind
from unisono.calls import p2p
from unisono.calls.p2p import Transfer, peers
from unisono.ranks.failures import stall


@pytest.mark.ranks(2, 3, hosts="2+1")
def test_numbers_of_numpy() -> None:
    """Ranks, tags and colors may be integers of NumPy; what comes back is an int."""
    me, size = np.int64(unisono.get_rank()), np.int32(unisono.get_world_size())
    group = unisono.new_group(np.arange(size))
    tensor = torch.tensor([int(me)])
    p2p.isend(tensor, (me + 1) % size, group, tag=np.uint8(7)).wait()
    source = p2p.recv(tensor, (me - 1) % size, group, tag=np.int64(7))
    assert (type(source), source) == (int, (me - 1) % size)
    assert tensor.item() == source
    p2p.isend(tensor, me, tag=np.int64(1)).wait()
    assert p2p.irecv(None, me, tag=1).result().item() == source
    unisono.broadcast(tensor, size - 1, unisono.split(np.int64(0), -me))
    assert tensor.item() == size - 1


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


WRONG: list[tuple[str, type[Exception], str]] = [
    ("send([1.0], 0)", DTypeError, "tensor: got list, expected a torch.Tensor"),
    ("send(t.to_sparse(), 0)", DTypeError, "to_dense"),
    ("send(t, 2)", ArgumentError, "dst: got 2, expected a rank of this group, 0 to 1"),
    ("send(torch.quantize_per_tensor(t, 0.5, 0, torch.quint8), 0)", DTypeError, "int_repr"),
    ("send(t[:1].view([1] * 256), 0)", ArgumentError, "got 256 dimensions, expected at most 255"),
    ("isend(t[:1].view([1] * 256), 0)", ArgumentError, "got 256 dimensions, expected at most 255"),
    ("recv(t, -1)", ArgumentError, "src: got -1"),
    ("irecv(t, 2)", ArgumentError, "src: got 2"),
    ("irecv(t, 0.0)", DTypeError, "src: got float, expected a rank"),
    ("send(t, True)", DTypeError, "dst: got bool, expected a rank"),
    ("send(t, 0, tag=True)", DTypeError, "tag: got bool, expected"),
    ("send(torch.nested.nested_tensor([t, t]), 0)", DTypeError, "nested"),
    ("isend(t, None)", DTypeError, "dst: got NoneType, expected a rank"),
    ("send(t, 0, tag=-3)", ArgumentError, "tag: got -3"),
    ("recv(t, 0, tag=1 << 63)", ArgumentError, "tag: got "),
    ('recv(t, 0, tag="a")', DTypeError, "tag: got str, expected an integer"),
    ("recv(t[:1].expand(3), 0)", ArgumentError, "share memory"),
    ("recv(t.as_strided((3, 2), (1, 1)), 0)", ArgumentError, "share memory"),
    ("irecv(t[:1].expand(3))", ArgumentError, "share memory"),
    ("P2POp(irecv, t.as_strided((2, 3), (1, 1)), 0)", ArgumentError, "share memory"),
    ("sendrecv(torch.ones(6), 0, t.as_strided((3, 2), (1, 1)), 0)", ArgumentError, "share memory"),
    ("sendrecv(t, 0, t, 0)", ArgumentError, "share memory"),
    ("recv(t.to(torch.complex64).conj(), 0)", ArgumentError, "resolve_conj"),
    ("P2POp(send, t, 0)", ArgumentError, "expected unisono.isend or unisono.irecv"),
    ("P2POp(isend, t, 7)", ArgumentError, "dst: got 7"),
    ("batch_isend_irecv([P2POp(isend, t, 0), t])", DTypeError, r"p2p_op_list\[1\]: got .*, expected a P2POp"),
]  # fmt: skip
"""Calls with a tensor t, the error, and words of it."""


@pytest.mark.ranks(2, hosts="2x1")
def test_wrong_arguments_move_nothing() -> None:
    """Before the first message, and where short ones need not wait."""
    me, tensor = unisono.get_rank(), torch.ones(5)
    for _ in range(2):
        for call, kind, words in WRONG:
            with pytest.raises(kind, match=words):
                eval(call, {**vars(p2p), "t": tensor, "torch": torch})  # noqa: S307  our own rows
        p2p.send(torch.full((5,), float(me)), 1 - me)
        p2p.recv(tensor, 1 - me)
        assert tensor.tolist() == [1.0 - me] * 5
        p2p.send(tensor[:1].view([1] * 255), 1 - me)
        assert p2p.recv(None, 1 - me).shape == (1,) * 255
    unisono.all_reduce(tensor)
    assert tensor.tolist() == [1.0] * 5


@pytest.mark.ranks(2, hosts="2x1")
def test_long_message_moves_while_nobody_waits() -> None:
    tensor = values(2_000_000, 1)
    if unisono.get_rank() == 0:
        sent = p2p.isend(tensor, 1)
        unisono.barrier()  # the other comes here when it has all
        sent.wait()
    else:
        assert torch.equal(p2p.recv(None, 0), tensor)
        unisono.barrier()


@pytest.mark.ranks(2, hosts="2x1")
def test_futures_and_polling() -> None:
    me = unisono.get_rank()
    work = p2p.irecv(torch.empty(4), 1 - me)
    heard = threading.Event()
    future = work.get_future().then(lambda done: (done.value().sum().item(), heard.set())[0])
    assert not work.is_completed()
    assert not work.is_success()
    unisono.barrier()
    p2p.send(torch.full((4,), float(me)), 1 - me)
    while not work.is_completed():
        pass
    assert heard.wait(20)
    assert future.wait() == 4.0 * (1 - me)


@pytest.mark.ranks(3, hosts="2+1")
def test_between_collectives() -> None:
    """Messages have no place in the order of collectives: one may begin before a collective and end after it."""
    me, size = unisono.get_rank(), unisono.get_world_size()
    early = p2p.irecv(torch.empty(3), (me + 1) % size)
    total = torch.ones(10_000)
    unisono.all_reduce(total)
    assert (total == size).all()
    p2p.send(values(3, me), (me - 1) % size)
    unisono.barrier()
    assert torch.equal(early.result(), values(3, (me + 1) % size))


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


WAITS_S = 0.2
ALONE = "Only this rank itself can send that message: call isend() before, or send() in another thread."


def waits(wait: Callable[[], object], call: str, rank: int) -> str:
    """What a wait for a message from oneself says on standard error. It ends with a WaitTimeout."""
    said: list[str] = []
    with patch.object(stall, "tell", said.append), pytest.raises(WaitTimeout) as caught:
        wait()
    assert ALONE in str(caught.value)
    assert call in str(caught.value)
    assert (caught.value.missing, caught.value.waiting) == ((), rank)
    (warning,) = said
    return warning


def wait_in_each_way(group: unisono.Group, src: int | None) -> None:
    """Every wait for a message from oneself. Those in the background go on, and end well."""
    me, rank, given = unisono.get_rank(), group.rank, torch.empty(3)
    late = p2p.irecv(torch.empty(3), src, group, tag=7)
    (several,) = p2p.batch_isend_irecv([p2p.P2POp(p2p.irecv, torch.empty(3), rank, group, 9)])
    calls: dict[str, Callable[[], object]] = {
        f"recv(float32[3], src={src}, tag=5)": lambda: p2p.recv(given, src, group, 5, timeout_s=WAITS_S),
        f"recv_object_list(1 objects, src={src}, tag=5)": lambda: p2p.recv_object_list(
            [None], src, group, 5, timeout_s=WAITS_S
        ),
        f"irecv(float32[3], src={src}, tag=7)": lambda: late.wait(WAITS_S),
        f"irecv(float32[3], src={rank}, tag=9)": lambda: several.wait(WAITS_S),
    }
    for call, wait in calls.items():
        warning = waits(wait, call, rank)
        assert warning.startswith(f"unisono: rank {me} has waited ")
        assert warning.endswith(" for a message from itself: no other rank can send it\n")
        assert call in warning
    for work, tag in ((late, 7), (several, 9)):
        p2p.isend(values(3, me + tag), rank, group, tag).wait()
        assert torch.equal(work.result(), values(3, me + tag))


@pytest.mark.parametrize("hosts", ["1x2", "1+1"])
@in_new_world(hosts="hosts", config=Config(stall_warning_s=0.03))
def test_wait_for_oneself_is_told(hosts: str) -> None:
    me = unisono.get_rank()
    mine = next(group for group in [unisono.new_group([rank]) for rank in range(2)] if group)
    wait_in_each_way(unisono.init(), me)
    wait_in_each_way(mine, None)


@pytest.mark.ranks(2, hosts="2x1")
def test_wait_for_oneself_tells_other_tags() -> None:
    me = unisono.get_rank()
    p2p.isend(values(3, me), me, tag=31).wait()
    with pytest.raises(WaitTimeout, match=re.escape(f"{ALONE} Rank {me} has sent tag 31.")):
        p2p.recv(None, me, tag=32, timeout_s=0.0)
    p2p.recv(None, me, tag=31)


@pytest.mark.parametrize("hosts", ["1x2", "1+1"])
@in_new_world(hosts="hosts", config=Config(stall_warning_s=0.05))
def test_another_thread_ends_a_wait_for_oneself(hosts: str) -> None:
    me = unisono.get_rank()
    said = list[str]()
    with patch.object(stall, "tell", said.append), ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (until(lambda: said), p2p.send(values(5, me), me)))
        assert torch.equal(p2p.recv(None, me), values(5, me))
    assert len(said) == 1


@pytest.mark.ranks(2, backend="unisono")
def test_torch_receive_alone_raises() -> None:
    mine = [dist.new_group([rank], timeout=timedelta(seconds=WAITS_S)) for rank in range(2)][dist.get_rank()]
    with pytest.raises(WaitTimeout, match="Only this rank itself can send"):
        dist.recv(torch.empty(3), None, mine)
