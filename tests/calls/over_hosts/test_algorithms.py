"""Every algorithm over hosts, tables of the user's own, and long vectors: against the oracle."""

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
import torch

import unisono
from tests.conftest import NIGHTLY
from tests.support.matrix import ALIASED, FORMS, Case, ops
from tests.support.matrix_driver import check, forget
from tests.support.programs import Python, free_port, place
from unisono.base.config import environment_name
from unisono.base.errors import MismatchError
from unisono.schedule import ADD, COPY, ROOTED, Rows, T, Transfer, Y, send
from unisono.schedule.algorithms import CATALOGUE, algorithm

RUN_S = 270.0 if NIGHTLY else 90.0

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


def make_calls(collective: str, name: Any, count: int) -> None:
    """Make a call with the first root and the last, twice, so that what is kept of one call is used by the next."""
    if collective == "barrier":
        unisono.barrier()
        return
    form = f"{collective}_single" if f"{collective}_single" in FORMS else collective
    for root in {0, unisono.get_world_size() - 1} if form in ROOTED else {0}:
        for alias, seed in product((False, True) if form in ALIASED else (False,), (0, 1)):
            op = ops(form, "float32")[0]
            check(Case(form, "float32", op, count, root=root, seed=seed, exact=True, alias=alias), name)
    if count == LONG:
        forget()


@pytest.mark.timeout(300)
@pytest.mark.sampled(most=1)
@pytest.mark.ranks(hosts=["2x1", "2x2", "3+1", "3x1", "1x3"], timeout_s=RUN_S)
def test_every_algorithm(ranks: str) -> None:
    """By day the same eighth of them."""
    names = [(one.collective, one.name) for one in CATALOGUE.values() if one.allows(unisono.get_world_size())]
    made = [*names, *((collective, function) for collective, functions in OWN.items() for function in functions)]
    for collective, name in made if NIGHTLY else random.Random(f"{(ranks,)}").sample(made, len(made) // 8):
        for count in (1, 1_001, LONG):
            make_calls(collective, name, count)


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(hosts=["2x2", "3+1"])
def test_uneven_blocks_go_by_every_algorithm() -> None:
    size = unisono.get_world_size()
    for some in CATALOGUE.values():
        if "uneven" in FORMS.get(some.collective, ()) and some.allows(size):
            op, name = ops(some.collective, "float32")[0], some.full_name
            check(Case(some.collective, "float32", op, 9, blocks="uneven", root=1, seed=1, exact=True), name)


@pytest.mark.ranks(hosts="2x2")
def test_name_means_one_table_short_or_full() -> None:
    """Ranks that name it in several ways make one call; a table of the user's own is another one."""
    me, own = unisono.get_rank(), CATALOGUE["all_reduce.circulant"].schedule(4)
    case = Case("all_reduce", "float32", "sum", 1000, exact=True)
    check(case, ["circulant", "all_reduce.circulant"][me % 2])
    with pytest.raises(MismatchError) as caught:
        unisono.all_reduce(torch.ones(1000), algorithm=own if me else "circulant")
    assert "all_reduce.spanning circulant ×1 over 2x2" in str(caught.value)
    assert "all_reduce.circulant over 2x2" in str(caught.value)
    check(case, own)


def _by_the_neighbour(r: Rows, p: int) -> Iterator[Transfer]:
    """An all_to_all of 4 ranks: what is for the rank after the next waits at the next one, in the place of another."""
    yield send(r, (r + 1) % p, (r + 2) % p, dbuf=Y)
    yield send(r, (r + 1) % p, (r + 1) % p, to=(r - 1) % p, sbuf=Y, dbuf=Y)
    for step in (0, 1, 3):
        yield send(r, (r + step) % p, (r + step) % p, to=r, dbuf=Y)


@pytest.mark.ranks(hosts="2x2")
def test_table_may_move_uneven_blocks() -> None:
    for seed, blocks in enumerate(("even", "uneven", "even")):
        check(Case("all_to_all", "float32", "-", 5, blocks=blocks, seed=seed), _by_the_neighbour)


FIGURES = {
    "segment_bytes": (64 << 10, 1 << 20),
    "one_shot_bytes": (1 << 10, 64 << 10),
    "crowd_one_shot_bytes": (16 << 10, 128 << 10),
    "zero_copy_bytes": (0, 32 << 10),
    "cross_memory_bytes": (0, 128 << 10),
}

SCRIPT = """
import torch, unisono
from tests.fuzz.ranks import make_every_call
group = unisono.init()
make_every_call(group, (3, 5_000, 300_001))
print(group.hosts.text, group.engine.config.segment_bytes)
unisono.shutdown()
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_hosts_with_settings_of_their_own(python: Python) -> None:
    port, ranks = free_port(), []
    for rank in range(4):
        own = {environment_name(name): both[rank // 2] for name, both in FIGURES.items()}
        more = {"UNISONO_HOST_ID": rank // 2, "UNISONO_TIMEOUT_S": 60, **own}
        ranks.append(python("-c", SCRIPT, **place(rank, 4, port), **more))
    said = [rank.communicate(timeout=RUN_S)[0].split() for rank in ranks]
    assert said == [["2x2", f"{64 << 10}"]] * 2 + [["2x2", f"{1 << 20}"]] * 2


@pytest.mark.ranks(hosts=["2x1", "3+1"])
def test_every_call_on_long_vectors() -> None:
    for form in FORMS:
        named = ("sum", "avg", "max") if form == "all_reduce" else ops(form, "float64")[:1]
        for op, root in product(named, (0, 3) if form in ROOTED else (0,)):
            check(Case(form, "float64", op, LONG, root=root, seed=root, exact=True))
    forget()


@pytest.mark.ranks(hosts=["2x1", "3+1"])
def test_nobody_writes_a_tensor_after_the_error() -> None:
    """What other ranks of a call have sent, and still send, goes to memory of our own."""
    me, last, group = unisono.get_rank(), unisono.get_world_size() - 1, unisono.new_group()
    tensor = torch.full((LONG,), float(me))
    if me != last:
        with pytest.raises(unisono.WaitTimeout):
            unisono.all_reduce(tensor, group=group, timeout_s=0.5)
        tensor.fill_(-1.0)
    unisono.barrier()
    if me == last:
        with suppress(unisono.PeerError):  # the others had sent all of it
            unisono.all_reduce(tensor, group=group, timeout_s=20)
    unisono.barrier()
    assert me == last or tensor.eq(-1.0).all()
