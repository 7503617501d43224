"""Every algorithm, in place and not, with every setting that shapes programs, over hosts: against the oracle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

import unisono
from tests.conftest import NIGHTLY, RUN_S, commit
from tests.support.matrix import ALIASED, FORMS, Case, ops
from tests.support.matrix_driver import check, forget
from tests.support.worlds import OnHosts
from unisono.schedule import ADD, COPY, ROOTED, Hosts, T, Y, send
from unisono.schedule.algorithms import CATALOGUE, algorithm

SHAPES = ["2x1", "2x2", "3+1", "3x1", "1x3"]

SETTINGS: dict[str, dict[str, Any]] = {
    "inputs are kept": {"keep_inputs": 1},
    "short segments": {"segment_bytes": 4096, "one_way_segment_bytes": 4096, "fetch_bytes": 4096},
    "zero copy, two steps": {"zero_copy_bytes": 0, "one_shot_bytes": 0, "crowd_one_shot_bytes": 0, "tag_bytes": 0},
    "one step, memory of others": {"one_shot_bytes": 1 << 30, "crowd_one_shot_bytes": 1 << 30, "cross_memory_bytes": 1},
}

COUNTS = (1, 1_001)
LONG = 300_001
"""Elements of four bytes: longer than what is copied before it is sent, and no multiple of any number of ranks."""


@algorithm("all_reduce", chunks=1, result="Y")
def sums_at_rank_0(r: Any, p: int) -> Iterator[Any]:
    """Rank 0 adds up beside its input, and sends the sum to the others' results, which may lie in their inputs."""
    yield [send(q, 0, 0, dbuf=Y, op=ADD if q else COPY) for q in range(p)]
    yield [send(0, q, 0, sbuf=Y, dbuf=Y) for q in range(1, p)]


@algorithm("all_reduce", chunks=1, result="Y")
def inputs_sent_late(r: Any, p: int) -> Iterator[Any]:
    """Inputs are sent once more when the results are there: these must not lie there yet."""
    yield [send(q, r, 0, dbuf=Y, op=ADD if q else COPY) for q in range(p)]
    yield send(r, (r + 1) % p, 0, dbuf=T)


@algorithm("all_reduce", chunks=1, result="Y")
def three_of_one_rank(r: Any, p: int) -> Iterator[Any]:
    """A sum has two parts that came before, and behind them what lies where the sum goes."""
    early = [(Y, 2), (T, 1)] if p > 2 else [(T, 1)]
    yield [send((r - k) % p, r, 0, dbuf=buffer) for buffer, k in early]
    late = [k for k in range(p) if k not in dict(early).values()]
    others = [send((r - k) % p, r, 0, dbuf=Y, op=ADD) for k in late]
    yield [send(r, r, 0, sbuf=T, dbuf=Y, op=ADD if p > 2 else COPY), *others]


@algorithm("all_gather", result="Y")
def blocks_in_y(r: Any, p: int) -> Iterator[Any]:
    """All blocks at once, beside the input, which may be one of them."""
    yield [send(r, q, r, dbuf=Y) for q in range(p)]


@algorithm("reduce_scatter", result="Y")
def sums_in_y(r: Any, p: int) -> Iterator[Any]:
    """All sums at once, beside the input, of which the result may be a part."""
    yield [send(q, r, r, dbuf=Y, op=ADD if q else COPY) for q in range(p)]


OWN = {
    "all_reduce": [sums_at_rank_0, inputs_sent_late, three_of_one_rank],
    "all_gather": [blocks_in_y],
    "reduce_scatter": [sums_in_y],
}


def make_calls(collective: str, name: Any, count: int, *, shared: bool = False) -> None:
    """Make a call with the first root and the last, twice, so that what is kept of one call is used by the next."""
    if collective == "barrier":
        unisono.barrier()
        return
    form = f"{collective}_single" if f"{collective}_single" in FORMS else collective
    name = None if collective in ("scan", "exscan") else name
    for root in {0, unisono.get_world_size() - 1} if form in ROOTED else {0}:
        for alias, seed in product((False, True) if form in ALIASED else (False,), (0, 1)):
            case = Case(form, "float32", ops(form, "float32")[0], count, root=root, seed=seed, exact=True)
            check(replace(case, shared=shared, alias=alias), name)
    if count == LONG:
        forget()


def everything(counts: tuple[int, ...], seed: str, *, shared: bool = False) -> None:
    """Make calls by all algorithms; if there is a seed, by an eighth of them, which it draws."""
    names = [(one.collective, one.name) for one in CATALOGUE.values() if one.allows(unisono.get_world_size())]
    own = [(collective, function) for collective, functions in OWN.items() for function in functions]
    made = [*names, *own]
    for collective, name in random.Random(seed).sample(made, len(made) // 8) if seed else made:
        for count in counts:
            make_calls(collective, name, count, shared=shared)


def seed(*case: str) -> str:
    """What draws the algorithms of a case: another eighth for each commit, all in `make nightly`."""
    return "" if NIGHTLY else f"{commit()} {case}"


@pytest.mark.timeout(300)
@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_algorithm(on_hosts: OnHosts, shape: str) -> None:
    on_hosts(shape).run(everything, (*COUNTS, LONG), seed(shape))


@pytest.mark.timeout(300)
@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_algorithm_with_every_setting(setting: str, shape: str) -> None:
    config = unisono.Config(**SETTINGS[setting])
    with unisono.World(Hosts.parse(shape).ranks, hosts=shape, config=config, timeout_s=RUN_S) as world:
        world.run(everything, (1_001,), seed(shape, setting), shared=setting.startswith("zero copy"))
