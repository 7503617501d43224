"""Long random sequences of calls, the same on all ranks, back to back, in the foreground and the background."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
import torch

import unisono
from tests.conftest import examples
from tests.support.matrix import ALIASED, FORMS, REDUCING, Case, ops
from tests.support.matrix_driver import algorithms, check, roots, start
from tests.support.reducers_driver import INTEGERS, NUMERIC
from tests.support.worlds import Worlds
from unisono.base.config import Config

COUNTS = (0, 1, 2, 3, 7, 64, 130, 1000, 2049, 5003, 20_011)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")


def draw_call(draw: random.Random, background: bool) -> tuple[Case, str | None]:
    """A case, and the algorithm that it names."""
    form, dtype = draw.choice(list(FORMS)), draw.choice(DTYPES)
    op = draw.choice([op for op in ops(form, dtype) if op in NUMERIC]) if form in REDUCING else "-"
    name = draw.choice([None, None, *algorithms(form)])
    if op == "avg" and dtype in INTEGERS:
        name = None  # the others round partial sums
    layout = draw.choice(["contiguous", "contiguous", "offset", "strided"])
    alias = form in ALIASED and layout != "strided" and draw.random() < 0.5
    case = Case(
        form, dtype, op, draw.choice(COUNTS), layout, "even", draw.random() < 0.5, background and draw.random() < 0.5,
        draw.choice(roots(form)), draw.randrange(5), name is not None, alias,
    )  # fmt: skip
    return case, name


def sequence(seed: int, calls: int, background: bool = False) -> None:
    """The same calls on all ranks; now and then one of them is a little late."""
    draw, late = random.Random(seed), random.Random(f"{seed} {unisono.get_rank()}")
    pending: dict[Callable[[], str], Case] = {}
    for k in range(calls):
        case, name = draw_call(draw, background)
        pending[start(case, name)] = case
        if late.random() < 0.05:
            time.sleep(late.random() * 1e-3)
        if not background or draw.random() < 0.3 or k == calls - 1:
            for finish, made in pending.items():
                found = finish()
                assert not found, f"{made}: {found}"
            pending.clear()
        if draw.random() < 0.02:
            unisono.barrier(algorithm=draw.choice(algorithms("barrier")))


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("ranks", "calls"), [(1, 200), (2, 600), (3, 500), (4, 400), (5, 300), (7, 200)])
def test_random_sequences(worlds: Worlds, ranks: int, calls: int) -> None:
    worlds(ranks).run(sequence, 100 + ranks, examples(calls))


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_random_sequences_in_the_background(worlds: Worlds, ranks: int) -> None:
    worlds(ranks).run(sequence, 200 + ranks, examples(300), background=True)


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_calls_that_come_back_and_go_on_all_the_time(ranks: int) -> None:
    """A kernel that looks up every microsecond stops and resumes at every row where it can."""
    config = Config(look_up_s=1e-6, spins=0, segment_bytes=32 << 10)
    with unisono.World(ranks, timeout_s=60, config=config) as world:
        world.run(sequence, 300 + ranks, examples(600 // ranks))
        world.run(sequence, 400 + ranks, examples(200 // ranks), background=True)


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
    with unisono.World(2, timeout_s=60) as world:
        assert world.run(lambda: unisono.init().host.config.look_up_s) == [1e-6] * 2
        world.run(sequence, 500, examples(200))


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
