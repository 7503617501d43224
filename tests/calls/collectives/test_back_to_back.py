"""Calls back to back, in the foreground and the background."""

from __future__ import annotations

import random
import time

import pytest
import torch

import unisono
from tests.conftest import examples
from tests.support.matrix import Case
from tests.support.matrix_driver import check
from tests.support.worlds import Worlds
from unisono.base.config import Config


def test_no_call_is_taken_for_another_while_peers_come_late() -> None:
    """Who looks up at the gate may see a peer in the next call already: that is no disagreement."""

    def many(calls: int) -> None:
        late = random.Random(unisono.init().rank)
        for seed in range(calls):
            check(Case("all_reduce", "float32", "sum", 1, seed=seed % 31))
            if late.random() < 0.5:
                time.sleep(late.random() * 1e-3)

    with unisono.World(3, timeout_s=60, config=Config(look_up_s=1e-6, spins=0)) as world:
        world.run(many, examples(600))


def test_the_environment_reaches_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_LOOK_UP_S", "0.000001")
    assert unisono.run(lambda: unisono.init().host.config.look_up_s, 2) == [1e-6] * 2


@pytest.mark.ranks(2)
def test_callbacks_may_call_and_ask_while_more_is_queued() -> None:
    first, second, third = torch.ones(50_000), torch.ones(50_000), torch.ones(5)
    work = unisono.all_reduce(first, async_op=True)
    called = work.get_future().then(lambda _: unisono.all_reduce(third))
    queued = unisono.all_reduce(second, async_op=True)
    asked = work.get_future().then(lambda _: work.get_future().done() and work.is_success())
    called.wait()
    queued.wait()
    assert third[0].item(), asked.wait() == (2.0, True)


def test_a_work_keeps_its_tensors(worlds: Worlds) -> None:
    """Temporaries that nobody else holds live until the call has ended."""

    def temporaries() -> list[float]:
        group = unisono.init()
        results = [torch.zeros(20_000 * group.size) for _ in range(20)]
        works = []
        for k, result in enumerate(results):
            works.append(unisono.all_gather_single(result, torch.full((20_000,), float(k + group.rank)), async_op=True))
            torch.full((20_000,), -1.0)  # takes the place of what has been given up too early
        for work in works:
            work.wait()
        return [float(result.sum()) for result in results]

    want = [20_000.0 * (k + k + 1) for k in range(20)]
    assert worlds(2).run(temporaries) == [want] * 2
