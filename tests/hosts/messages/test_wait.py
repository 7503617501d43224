"""A wait for messages: it ends at once when a rank of the world has gone, and takes little of a processor."""

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.waiting import until as until_true
from unisono.engine.compile.program import WAITING, StateWord
from unisono.engine.mailbox.poller import Poller
from unisono.hosts.messages import until, wait
from unisono.ranks.failures.attend import Watch

WAIT_S = 4.0


def test_a_word_that_others_count_up_ends_a_wait() -> None:
    word, ended = ctypes.c_uint64(7), list[bool]()
    poller = Poller(1, most_spins=0, counter=ctypes.addressof(word))
    assert poller.wait(6, 0.0, 0.0)
    assert not poller.wait(7, 0.0, 0.0)
    thread = threading.Thread(target=lambda: ended.append(poller.wait(7, 0.0, 60.0)))
    thread.start()
    until_true(lambda: bool(poller._waiting))
    poller.wake()  # of another word
    word.value += 1
    thread.join()
    assert ended == [True]


def test_waiting_rank_looks_at_once() -> None:
    words = memoryview(bytearray(8 * StateWord.WORDS)).cast("q")
    words[StateWord.LOOK_UP_NS] = 3600 * 10**9
    looks, paused, missing = [(), (WAITING, WAITING | 1 << 8), ()], list[int](), iter([5, 5, 5, None])

    def pause(rank: int, *_: float) -> bool:
        paused.append(rank)
        return True

    assert [*until(lambda: next(missing), pause, words, lambda: looks[len(paused)])] == [WAITING, WAITING | 1 << 8]
    assert paused == [5, 5, 5]


def test_long_wait_returns_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    words, now = memoryview(bytearray(8 * StateWord.WORDS)).cast("q"), 0.0
    words[StateWord.LOOK_UP_NS] = 20 * 10**6
    monkeypatch.setattr(wait.time, "monotonic", lambda: now)

    def pause(_: int, waited_s: float, most_s: float) -> bool:
        nonlocal now
        assert most_s <= max(0.02, min(waited_s / 20, 0.2)) + 1e-9
        now += most_s
        return True

    returns = sum(1 for _ in until(lambda: 5 if now < 20.0 else None, pause, words, lambda: ()))
    assert 150 < returns < 300


class Watched:
    """A tape with a missing message, and a span whose carrier has a thread. told: how often it woke the rank."""

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * 2)()
        self.watched = ctypes.addressof(self.words), ctypes.addressof(self.words) + 8
        self.told = 0
        self.carrier, self.resources, self.news, self.seen = self, {}, ctypes.c_uint64(), ctypes.c_int64()
        self.wait = None

    def wake(self, news: Callable[[], object]) -> bool:
        self.told += 1
        news()
        return True


@pytest.mark.parametrize("rests", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_wait_polls_memory_before_it_sleeps(apart: bool, rests: bool) -> None:
    it: Any = Watched()
    waiting = wait.MessageWait(it, 1, apart=apart, rests=rests)
    assert not waiting.pause(it, 0, 0.0, 1e-4)
    assert it.told == 0
    assert waiting.pause(it, 0, 0.005, 1e-4) is apart
    assert it.told == apart
    assert waiting.pause(it, 0, 1.0, 1e-4)
    assert it.told == 1 + apart
    it.words[0] = 1
    assert waiting.pause(it, 0, 0.0, 60.0)
    assert it.told == 1 + apart


@pytest.mark.long
def test_wait_for_a_host_leaves_the_processor() -> None:
    def work() -> tuple[float, int]:
        tensor = torch.ones(4)
        unisono.all_reduce(tensor)
        with patch.object(Watch, "look", autospec=True, side_effect=Watch.look) as look:
            before = time.process_time()
            if unisono.get_rank() == 1:
                time.sleep(WAIT_S)
            unisono.all_reduce(tensor)
            return time.process_time() - before, look.call_count

    took_s, looks = unisono.run(work, 2, hosts="2x1", timeout_s=90)[0]
    assert took_s < 0.06 * WAIT_S
    assert 0 < looks < 60
