"""Every algorithm, in place and not, with every setting that shapes programs, over hosts: against the oracle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import unisono
from tests.conftest import NIGHTLY, commit
from tests.support.worlds import OnHosts
from unisono.schedule import ADD, COPY, Hosts, T, Y, send
from unisono.schedule.algorithms import CATALOGUE, algorithm
from unisono.tools.testing import oracle

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


def values(rank: int, count: int) -> torch.Tensor:
    """Small whole numbers, others on each rank and at each index: sums of them are exact."""
    return ((torch.arange(count) * 7 + 5 * rank + 1) % 23 - 9).to(torch.float32)


def check(collective: str, name: Any, count: int, *, shared: bool = False) -> None:
    """Make a call with the first root and the last, twice, so that what is kept of one call is used by the next."""
    me, size = unisono.get_rank(), unisono.get_world_size()
    every = [values(rank, count) for rank in range(size)]
    blocks = [values(rank, count * size) for rank in range(size)]

    def new(given: torch.Tensor) -> torch.Tensor:
        return unisono.empty(given.shape, dtype=given.dtype).copy_(given) if shared else given.clone()

    for root in {0, size - 1} if collective in ("broadcast", "reduce", "scatter", "gather") else {0}:
        for _ in range(2):
            mine, apart, whole = new(every[me]), new(torch.zeros(count)), new(torch.zeros(count * size))
            match collective:
                case "all_reduce":
                    unisono.all_reduce(mine, algorithm=name)
                    got, want = mine, oracle.all_reduce(every)[me]
                case "reduce":
                    unisono.reduce(mine, root, algorithm=name)
                    got, want = mine, oracle.reduce(every, root)[me]
                case "broadcast":
                    unisono.broadcast(mine, root, algorithm=name)
                    got, want = mine, oracle.broadcast(every, root)[me]
                case "scatter":
                    inputs = list(new(blocks[me]).split(count)) if me == root else None
                    unisono.scatter(mine, inputs, root, algorithm=name)
                    got, want = mine, oracle.scatter(blocks, root)[me]
                case "gather":
                    outputs = list(whole.split(count)) if me == root else None
                    unisono.gather(mine, outputs, root, algorithm=name)
                    got, want = whole, oracle.gather(every, root)[me]
                    want = torch.zeros(count * size) if want is None else want
                case "all_gather":
                    unisono.all_gather_single(whole, mine, algorithm=name)
                    got, want = whole, oracle.all_gather(every)[me]
                    own = whole.zero_().view(size, count)[me].copy_(every[me])
                    unisono.all_gather_single(whole, own, algorithm=name)  # its own block is part of the output
                case "reduce_scatter":
                    unisono.reduce_scatter_single(apart, new(blocks[me]), algorithm=name)
                    got, want = apart, oracle.reduce_scatter(blocks)[me]
                    assert torch.equal(got, want)
                    got = (given := new(blocks[me])).view(size, count)[me]
                    unisono.reduce_scatter_single(got, given, algorithm=name)  # the output is part of the input
                case "all_to_all":
                    unisono.all_to_all_single(whole, new(blocks[me]), algorithm=name)
                    got, want = whole, oracle.all_to_all(blocks)[me]
                case "barrier":
                    unisono.barrier()
                    continue
                case "scan" | "exscan":
                    getattr(unisono, collective)(mine)
                    got, want = mine, getattr(oracle, collective)(every)[me]
                case other:
                    raise AssertionError(other)
            assert torch.equal(got, want), f"{collective}, {name}, {count} elements, root {root}, rank {me} of {size}"


def everything(counts: tuple[int, ...], seed: str, *, shared: bool = False) -> None:
    """Make calls by all algorithms; if there is a seed, by an eighth of them, which it draws."""
    names = [(one.collective, one.name) for one in CATALOGUE.values() if one.allows(unisono.get_world_size())]
    own = [(collective, function) for collective, functions in OWN.items() for function in functions]
    made = [*names, *own]
    for collective, name in random.Random(seed).sample(made, len(made) // 8) if seed else made:
        for count in counts:
            check(collective, name, count, shared=shared)


def seed(*case: str) -> str:
    """What draws the algorithms of a case: another eighth for each commit, all in `make nightly`."""
    return "" if NIGHTLY else f"{commit()} {case}"


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_algorithm(on_hosts: OnHosts, shape: str) -> None:
    on_hosts(shape).run(everything, (*COUNTS, LONG), seed(shape))


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_algorithm_with_every_setting(setting: str, shape: str) -> None:
    config = unisono.Config(**SETTINGS[setting])
    with unisono.World(Hosts.parse(shape).ranks, hosts=shape, config=config, timeout_s=90) as world:
        world.run(everything, (1_001,), seed(shape, setting), shared=setting.startswith("zero copy"))
