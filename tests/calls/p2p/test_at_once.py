"""The short way of messages: when calls take it, and that it is no different from the long one."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.fuzz.api import Native
from tests.fuzz.messages import send_and_receive
from tests.fuzz.programs import Messages
from tests.support.on_ranks import values
from tests.support.waiting import until
from unisono.calls import p2p
from unisono.calls.p2p.progress_engine import progress_engine
from unisono.engine.mailbox import Mailbox


def meet() -> None:
    """Exchange a message with the other rank: from then on both know each other's rings."""
    peer, word = 1 - unisono.get_rank(), torch.zeros(1)
    p2p.sendrecv(word, peer, word.clone(), peer)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.ranks(2)
def test_threads_exchange_messages_of_many_sizes(seed: int) -> None:
    """Each thread has a tag, and takes in messages for the others while it waits."""
    me, sizes = unisono.get_rank(), (1, 3, 100, 5000, 16_384, 16_385, 40_000, 300_000)  # the last is longer than a ring
    meet()

    def exchange(tag: int) -> None:
        draw = random.Random(f"{seed} {tag}")
        for k in range(60):
            count, first, into = draw.choice(sizes), draw.randrange(2), draw.randrange(3)
            target = torch.full((count,), -1.0)
            for turn in (first, 1 - first):
                if turn == me:
                    p2p.send(values(count, 1000 * tag + k + me), 1 - me, tag=tag)
                elif into == 0:
                    p2p.recv(target, 1 - me, tag=tag)
                elif into == 1:
                    target = p2p.recv(None, 1 - me, tag=tag)
                else:
                    p2p.irecv(target, 1 - me, tag=tag).wait()
            assert torch.equal(target, values(count, 1000 * tag + k + 1 - me)), (tag, k, count)

    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(exchange, range(3))] == [None] * 3


@pytest.mark.parametrize("by_another_thread", [False, True])
@pytest.mark.ranks(2)
def test_long_message_changes_to_the_long_way(by_another_thread: bool) -> None:
    """A message of more bytes than are moved in one call. Another thread may move its rest before the call goes on."""
    me, begun = unisono.get_rank(), []

    def observed(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(mailbox: Mailbox, *arguments: Any) -> Any:
            request = original(mailbox, *arguments)
            if not isinstance(request, bool):
                begun.append(request)
                while by_another_thread and not request.done:
                    mailbox.progress()
            return request

        return call

    sent, target = values(3_000_000, 5), torch.zeros(3_000_000)
    meet()
    mailbox = progress_engine(unisono.init()).mailbox
    both = {name: observed(getattr(Mailbox, name)) for name in ("send_at_once", "receive_at_once")}
    with patch.multiple(Mailbox, **both):
        if me == 0:
            p2p.send(sent, 1, tag=2)
        else:
            until(mailbox.poller.poll)
            assert p2p.recv(target, 0, tag=2) == 0
            assert torch.equal(target, sent)
    assert len(begun) == 1
    for _ in range(2):  # the first of them would be lost to a receive that was posted again
        p2p.send(sent[:5], 1, tag=2) if me == 0 else p2p.recv(target[:5], 0, tag=2)
    p2p.sendrecv(values(3, me), 1 - me, target := torch.zeros(3), 1 - me)
    assert torch.equal(target, values(3, 1 - me))


@pytest.mark.ranks(2)
def test_receives_keep_their_order() -> None:
    """Its owner, which waits for another one; another call; the thread in the background; `is_completed`."""
    me = unisono.get_rank()
    meet()
    targets = [torch.zeros(3) for _ in range(7)]
    unisono.barrier()
    if me == 1:
        works = [p2p.irecv(target, 0) for target in targets[:4]]
        assert works[2].wait()
        p2p.recv(targets[4], 0)
        assert all(work.wait() for work in works)
        unisono.barrier()
        assert p2p.irecv(targets[5], 0).get_future().wait() is targets[5], "no thread waits for it"
        last = p2p.irecv(targets[6], 0)
        until(last.is_completed)
        for k, target in enumerate(targets):
            assert torch.equal(target, values(3, k))
    else:
        for k in range(7):
            if k == 5:
                unisono.barrier()
            p2p.send(values(3, k), 1)
    unisono.barrier()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.ranks(2, hosts="2x1")
def test_rare_messages_take_the_long_way(shared: bool) -> None:
    """Conjugates, strides, empty tensors, and shared memory."""
    api = Native()
    rare = (
        ("complex64", 4, "conjugate"),
        ("float32", 1, "negative"),
        ("float32", 4, "strided"),
        ("float32", 0, "offset"),
    )
    meet()
    for way, (dtype, n, layout) in product(("sendrecv", "pair"), (*rare, ("float32", 100_000, "contiguous"))):
        assert not send_and_receive(Messages(way, dtype, n, 1, layout=layout, shared=shared), api, api.world)()


@pytest.mark.ranks(2)
def test_isend_that_fills_the_ring_is_awaited() -> None:
    """The message and its head are longer than the ring, and its receiver comes late."""
    me, group = unisono.get_rank(), unisono.init()
    meet()
    for nbytes in (40, 32, 4, 0):
        numbers = torch.arange((group.mailbox.capacity - nbytes) // 4, dtype=torch.float32)
        if me == 0:
            work = p2p.isend(numbers, 1)
            unisono.barrier()
            work.wait()
            numbers.fill_(-1)
        else:
            unisono.barrier()
            assert torch.equal(p2p.recv(src=0), numbers), nbytes
