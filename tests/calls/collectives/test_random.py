"""Long random sequences of calls, the same on all ranks, back to back, in the foreground and the background."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
import torch

import unisono
from tests.support.collectives_driver import (
    COLLECTIVES,
    DTYPES,
    OPS,
    REDUCING,
    Case,
    Pending,
    algorithms,
    call,
    forms,
    roots,
    start,
)
from unisono.base.config import Config

Worlds = Callable[[int], unisono.World]
COUNTS = (0, 1, 2, 3, 7, 64, 130, 1000, 2049, 5003, 40_001)


def draw_case(draw: random.Random, background: bool) -> Case:
    collective = draw.choice(COLLECTIVES)
    name = draw.choice([None, None, *algorithms(collective)])
    dtype = draw.choice(DTYPES)
    op = draw.choice(OPS) if collective in REDUCING else "sum"
    if op == "avg" and not dtype.is_floating_point:
        name = None  # the others round partial sums
    form = draw.choice(list(forms(collective)))
    return Case(
        collective,
        draw.choice(COUNTS),
        dtype,
        op,
        draw.choice(roots(collective)),
        name,
        shared=draw.random() < 0.5,
        layout=draw.choice(["plain", "plain", "offset", "plain" if form.get("alias") else "strided"]),
        async_op=background and draw.random() < 0.5,
        seed=draw.randrange(5),
        **form,
    )


def sequence(seed: int, calls: int, background: bool = False) -> None:
    """The same calls on all ranks; now and then one of them is a little late."""
    draw, late = random.Random(seed), random.Random(f"{seed} {unisono.init().rank}")
    pending: list[Pending] = []
    for _ in range(calls):
        pending.append(start(draw_case(draw, background)))
        if late.random() < 0.05:
            time.sleep(late.random() * 1e-3)
        if not background or draw.random() < 0.3:
            for one in pending:
                one.finish()
            pending.clear()
        if draw.random() < 0.02:
            unisono.barrier(algorithm=draw.choice(algorithms("barrier")))
    for one in pending:
        one.finish()


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("ranks", "calls"), [(1, 200), (2, 600), (3, 500), (4, 400), (5, 300), (7, 200)])
def test_random_sequences(worlds: Worlds, ranks: int, calls: int) -> None:
    worlds(ranks).run(sequence, 100 + ranks, calls)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_random_sequences_in_the_background(worlds: Worlds, ranks: int) -> None:
    worlds(ranks).run(sequence, 200 + ranks, 300, background=True)


@pytest.mark.parametrize("ranks", [2, 3, pytest.param(5, marks=pytest.mark.long)])
def test_calls_that_come_back_and_go_on_all_the_time(ranks: int) -> None:
    """A kernel that looks up every microsecond stops and resumes at every row where it can."""
    config = Config(look_up_s=1e-6, spins=0, segment_bytes=32 << 10)
    with unisono.World(ranks, timeout_s=60, config=config) as world:
        world.run(sequence, 300 + ranks, 300)
        world.run(sequence, 400 + ranks, 100, background=True)


def test_no_call_is_taken_for_another_while_peers_come_late() -> None:
    """Who looks up at the gate may see a peer in the next call already: that is no disagreement."""

    def many() -> None:
        late = random.Random(unisono.init().rank)
        for seed in range(600):
            call(Case("all_reduce", 1, seed=seed % 31))
            if late.random() < 0.5:
                time.sleep(late.random() * 1e-3)

    with unisono.World(3, timeout_s=60, config=Config(look_up_s=1e-6, spins=0)) as world:
        world.run(many)


def test_the_environment_reaches_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_LOOK_UP_S", "0.000001")
    with unisono.World(2, timeout_s=60) as world:
        assert world.run(lambda: unisono.init().host.config.look_up_s) == [1e-6] * 2
        world.run(sequence, 500, 200)


@pytest.mark.parametrize("ranks", [2, 3])
def test_background_and_foreground_keep_their_order(worlds: Worlds, ranks: int) -> None:
    def chain() -> float:
        tensor = torch.ones(5000)
        works = []
        for _ in range(4):
            works.append(unisono.all_reduce(tensor, "sum", async_op=True))  # times the number of ranks
            unisono.all_reduce(tensor, "avg")  # as it was
            works.append(unisono.broadcast(tensor, 0, async_op=True))
        for work in works:
            assert work is not None
            assert work.wait()
            assert work.is_completed()
            assert work.is_success()
            assert work.exception() is None
        return tensor[0].item()

    assert worlds(ranks).run(chain) == [float(ranks**4)] * ranks


def test_futures_complete_with_their_calls(worlds: Worlds) -> None:
    def futures() -> float:
        tensor = torch.ones(10)
        work = unisono.all_reduce(tensor, async_op=True)
        assert work is not None
        doubled = work.get_future().then(lambda done: done.value() * 2 if done.value() is tensor else None)
        result = doubled.wait()
        work.get_future().wait()
        return result.sum().item()

    assert worlds(2).run(futures) == [40.0] * 2


def test_callbacks_may_call_and_ask_while_more_is_queued(worlds: Worlds) -> None:
    def callbacks() -> tuple[float, bool]:
        first, second, third = torch.ones(50_000), torch.ones(50_000), torch.ones(5)
        work = unisono.all_reduce(first, async_op=True)
        assert work is not None
        called = work.get_future().then(lambda _: unisono.all_reduce(third))
        queued = unisono.all_reduce(second, async_op=True)
        asked = work.get_future().then(lambda _: work.get_future().done() and work.is_success())
        called.wait()
        assert queued is not None
        queued.wait()
        return third[0].item(), asked.wait()

    assert worlds(2).run(callbacks) == [(2.0, True)] * 2


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
            assert work is not None
            work.wait()
        return [float(result.sum()) for result in results]

    want = [20_000.0 * (k + k + 1) for k in range(20)]
    assert worlds(2).run(temporaries) == [want] * 2
