"""Where short messages arrive: in receives that stand, posted before the calls that need them."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
import torch

from tests.support.in_process_carrier import InProcessCarrier, Wires
from tests.support.message_runs import finish, part_of
from tests.support.waiting import until
from unisono.engine.carrier import Handle, Lost
from unisono.hosts.messages import ReceiveBuffers, TapeRun, persistent_receives
from unisono.hosts.messages.persistent_receives import ReceiveBuffer


class Watched:
    """The word of a receive buffer: before it is read, another thread tries to post the buffer."""

    def __init__(self, word: Any, place: ReceiveBuffer, carrier: InProcessCarrier) -> None:
        self._word, self._other = word, threading.Thread(target=place.post, args=(carrier,))

    def __getitem__(self, at: int) -> int:
        if self._other.ident is None:
            self._other.start()
            self._other.join(0.2)  # it ends only where nothing keeps it from posting
        value: int = self._word[at]
        return value

    def __setitem__(self, at: int, value: int) -> None:
        self._word[at] = value

    def end(self) -> None:
        self._other.join(10)
        assert not self._other.is_alive()


def test_message_is_taken_before_its_next_receive() -> None:
    wires = Wires(Random(3))
    sender, receiver = (InProcessCarrier(wires, rank) for rank in range(2))
    place = ReceiveBuffer(0, 5, 16)
    place.post(receiver)
    sender.isend(1, 5, torch.tensor([77, 4]).view(torch.uint8))
    while wires.move():
        pass
    place._word = watched = Watched(place._word, place, receiver)
    assert place.take(4)
    watched.end()
    assert place.handle is not None, "it stands for the next call"


def standing_pair(carriers: list[InProcessCarrier], vectors: list[torch.Tensor], number: int) -> list[TapeRun]:
    """Both ranks of an all_reduce whose messages arrive in receives that are always posted."""
    return [part_of(carriers[k], "all_reduce.recursive_doubling", k, vectors[k], number) for k in range(2)]


def test_standing_receive_precedes_the_call() -> None:
    wires = Wires(Random(7))
    carriers = [InProcessCarrier(wires, rank) for rank in range(2)]
    vectors = [torch.full((3,), rank + 1) for rank in range(2)]
    ranks = standing_pair(carriers, [torch.ones(3, dtype=torch.int64) for _ in range(2)], 1)
    for number in range(1, 4):
        if number > 1:
            ranks[0].begin(number)
            ranks[1].begin(number)
        for carrier in carriers:
            ReceiveBuffers.of(carrier).post_used(carrier)
        assert wires.unmet == 0, "it may be the last of its kind"
        finish(ranks, wires)
    for rank, carrier in enumerate(carriers):
        ReceiveBuffers.of(carrier).post_used(carrier)
        assert wires.unmet == rank + 1, "nobody waits for what comes next, and there is room for it already"
    others = standing_pair(carriers, vectors, 4)  # its steps have not been kept: the receives are the same
    assert not others[0].advance()
    while wires.move():
        pass
    assert others[1].advance(), "the message was there before the call began"
    finish(others[:1], wires)
    assert vectors[0].tolist() == vectors[1].tolist() == [3, 3, 3]


def test_buffers_are_queued_once(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, posted, post = InProcessCarrier(Wires(Random(5)), 1), list[ReceiveBuffer](), ReceiveBuffer.post
    places, times = ReceiveBuffers.of(receiver), 100
    place = places.at(0, 5, 16)

    def note(receive_buffer: ReceiveBuffer, carrier: InProcessCarrier) -> None:
        posted.append(receive_buffer)
        post(receive_buffer, carrier)

    monkeypatch.setattr(ReceiveBuffer, "post", note)
    for _ in range(times):
        places.has_used(place)
    places.post_used(receiver)
    places.has_used(place)
    places.post_used(receiver)
    assert posted == [place] * 2


@pytest.mark.parametrize("arrives", [False, True], ids=["later", "before"])
def test_leftover_of_a_failed_call_is_dropped(arrives: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent_receives, "_OFTEN", 1)
    wires = Wires(Random(8))
    carriers = [InProcessCarrier(wires, rank) for rank in range(2)]
    vectors = [torch.full((3,), rank + 1) for rank in range(2)]
    finish(standing_pair(carriers, vectors, 1), wires)
    for carrier in carriers:
        ReceiveBuffers.of(carrier).post_used(carrier)
    failed = standing_pair(carriers, [torch.full((3,), 100)] * 2, 2)
    assert not failed[0].advance(), "rank 1 makes another call"
    failed[0].give_up()
    while arrives and wires.move():
        pass
    finish(standing_pair(carriers, vectors, 3), wires)
    assert vectors[0].tolist() == vectors[1].tolist() == [6, 6, 6]


def test_leftover_of_a_failed_call_wakes_twice() -> None:
    wires = Wires(Random(12))
    carriers = [InProcessCarrier(wires, rank) for rank in range(2)]
    vectors = [torch.full((3,), rank + 1) for rank in range(2)]
    failed = standing_pair(carriers, vectors, 1)
    assert not failed[0].advance()
    failed[0].give_up()
    ranks = standing_pair(carriers, vectors, 2)
    assert not ranks[1].advance()
    for _ in range(2):
        news = threading.Event()
        assert ranks[1].wake(news.set)
        while wires.move():
            pass
        until(news.is_set)
        ranks[1].advance()
        ranks[0].advance()
    finish(ranks[:1], wires)
    assert ranks[1].done
    assert vectors[0].tolist() == vectors[1].tolist() == [3, 3, 3]


def test_lost_rank_is_reported_in_its_calls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent_receives, "_OFTEN", 1)
    wires = Wires(Random(10))
    carriers = [InProcessCarrier(wires, rank) for rank in range(2)]
    ranks = standing_pair(carriers, [torch.ones(3) for _ in range(2)], 1)
    finish(ranks, wires)
    carriers[0].abort()
    ReceiveBuffers.of(carriers[0]).post_used(carriers[0])
    ranks[0].begin(2)
    with pytest.raises(Lost):
        ranks[0].advance()


def test_receive_of_two_threads_is_posted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wires, receive = Wires(Random(11)), InProcessCarrier.irecv
    carrier = InProcessCarrier(wires, 0)

    def slowly(carrier: InProcessCarrier, peer: int, tag: int, data: torch.Tensor) -> Handle:
        time.sleep(0.05)
        return receive(carrier, peer, tag, data)

    monkeypatch.setattr(InProcessCarrier, "irecv", slowly)
    place = ReceiveBuffers.of(carrier).at(1, 5, 16)
    with ThreadPoolExecutor(3) as pool:
        pool.map(place.post, [carrier] * 3)
    assert wires.unmet == 1


def test_receives_that_stand_have_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent_receives, "_OFTEN", 1)
    monkeypatch.setattr(persistent_receives, "_RECEIVE_BYTES", 0)
    monkeypatch.setattr(persistent_receives, "_STANDING_BYTES", 100)
    wires = Wires(Random(9))
    carriers = [InProcessCarrier(wires, rank) for rank in range(2)]
    first = standing_pair(carriers, [torch.ones(3, dtype=torch.int64) for _ in range(2)], 1)
    finish(first, wires)
    second = standing_pair(carriers, [torch.ones(1, dtype=torch.int64) for _ in range(2)], 1)
    finish(second, wires)
    for carrier in carriers:
        ReceiveBuffers.of(carrier).post_used(carrier)
    assert wires.unmet == 2, "a line of each rank; there is no room for a second one"
    for one in (*first, *second):
        one.begin(3)
    finish(second, wires)
    finish(first, wires)
