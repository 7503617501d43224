"""A wait for messages: it ends at once when a rank of the world has gone, and takes little of a processor."""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from unisono.calls.dispatch.over_hosts import hosts_run
from unisono.calls.dispatch.over_hosts.hosts_run import Relay
from unisono.engine.compile.program import WAITING, StateWord
from unisono.ranks.failures.attend import Watch

WAIT_S = 4.0


def relay(words: memoryview, looks: Callable[[], Sequence[int]]) -> Any:
    return SimpleNamespace(_engine=SimpleNamespace(words=words), _look=looks)


def test_waiting_rank_looks_and_waits_on() -> None:
    words = memoryview(bytearray(8 * StateWord.WORDS)).cast("q")
    words[StateWord.LOOK_UP_NS] = 3600 * 10**9
    looks, paused, missing = [(), (WAITING, WAITING | 1 << 8), ()], list[float](), iter([5, 5, 5, None])
    one = relay(words, lambda: looks[len(paused)])

    def pause(_: float, most_s: float) -> None:
        paused.append(most_s)

    assert [*Relay._until(one, lambda: next(missing), pause)] == [WAITING, WAITING | 1 << 8]
    assert len(paused) == 3


def test_a_rank_that_waits_for_long_returns_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    words, now = memoryview(bytearray(8 * StateWord.WORDS)).cast("q"), 0.0
    words[StateWord.LOOK_UP_NS] = 20 * 10**6
    monkeypatch.setattr(hosts_run.time, "monotonic", lambda: now)

    def pause(waited_s: float, most_s: float) -> None:
        nonlocal now
        assert most_s <= max(0.02, min(waited_s / 20, 0.2)) + 1e-9
        now += most_s

    returns = sum(1 for _ in Relay._until(relay(words, lambda: ()), lambda: 5 if now < 20.0 else None, pause))
    assert 150 < returns < 300


@pytest.mark.long
@in_new_world(2, hosts="2x1")
def test_wait_for_a_host_leaves_the_processor() -> None:
    tensor = torch.ones(4)
    unisono.all_reduce(tensor)
    with patch.object(Watch, "look", autospec=True, side_effect=Watch.look) as look:
        before = time.process_time()
        if unisono.get_rank() == 1:
            time.sleep(WAIT_S)
        unisono.all_reduce(tensor)
        took_s = time.process_time() - before
    assert unisono.get_rank() or (took_s < 0.06 * WAIT_S and 0 < look.call_count < 60)
