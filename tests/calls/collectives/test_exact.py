"""Every collective, algorithm, form, size, dtype and op on real processes: the right bits, the same on all ranks."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch

import unisono
from tests.support import oracle
from tests.support.matrix import ALIASED, FORMS, REDUCING, Case, ops
from tests.support.matrix_driver import algorithms, check, forget, roots
from unisono.base.config import Config
from unisono.schedule import ADD, COPY, Y, send

SIZES = (1, 2, 3, 4, 5, 7)
WHOLE = [form for form in FORMS if f"{form}_single" not in FORMS]
"""The calls, without the forms for lists of those that have another one."""

BOTH = (False, True)


def usual(form: str, n: int, **more: Any) -> Case:
    """A call with float32 and sums, of numbers that any algorithm gives the same results of."""
    return Case(form, "float32", ops(form, "float32")[0], n, exact=True, **more)


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.ranks(*SIZES)
def test_every_algorithm_and_form(form: str) -> None:
    calls = 0
    for root, n, name in product(roots(form), (0, 1, 7, 1000), [None, *algorithms(form)]):
        for shared, alias in product(BOTH, BOTH if form in ALIASED else [False]):
            check(usual(form, n, shared=shared, root=root, seed=calls % 3, alias=alias), name)
            calls += 1
    assert calls >= 8


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("form", WHOLE)
@pytest.mark.ranks(2, 3, 5)
def test_every_algorithm_on_large_tensors(form: str, ranks: int) -> None:
    for name, shared in product([None, *algorithms(form)], BOTH):
        check(usual(form, 100_003, shared=shared, root=ranks - 1, seed=int(shared)), name)
    forget()


@pytest.fixture(scope="module")
def short_segments() -> Iterator[unisono.World]:
    with unisono.World(3, timeout_s=60, config=Config(segment_bytes=16 << 10)) as world:
        yield world


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("form", WHOLE)
def test_every_algorithm_in_many_small_segments(short_segments: unisono.World, form: str) -> None:
    def segmented() -> None:
        for name in [None, *algorithms(form)]:
            for n, seed in ((30_011, 1), (9_001, 2), (30_011, 3)):
                check(usual(form, n, root=1, seed=seed), name)

    short_segments.run(segmented)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("op", ["avg", "product", "min", "max"])
@pytest.mark.ranks(4)
def test_every_op_with_every_algorithm(op: str) -> None:
    for form in REDUCING:
        for name in algorithms(form) if op in ops(form, "float32") else ():
            for dtype in ("float32", "bfloat16") if op == "avg" else ("float16", "int64"):
                check(Case(form, dtype, op, 501, root=1, exact=True), name)


@pytest.mark.ranks(3)
def test_repeated_calls_take_new_tensors() -> None:
    """The plan of a call is kept for the next one; the tensors' addresses, contents and layouts must not be."""
    for form, seed, layout in product(WHOLE, range(6), ("contiguous", "offset", "strided")):
        check(usual(form, 3000, seed=seed, layout=layout, shared=seed % 3 == 0, root=seed % 3))


@pytest.mark.parametrize("form", ["all_reduce", "all_gather_single", "broadcast"])
@pytest.mark.ranks(3)
def test_own_algorithm_runs(form: str) -> None:
    def everybody_to_everybody(r, p):
        yield [send(q, r, 0, dbuf=Y, op=ADD if q else COPY) for q in range(p)]

    def round_and_round(r, p):
        for k in range(p - 1):
            yield send(r, (r + 1) % p, (r - k) % p)

    def one_after_the_other(r, p, root):
        for k in range(1, p):
            yield send(root, (root + k) % p, 0, n=p)

    functions = {
        "all_reduce": unisono.algorithm("all_reduce", chunks=1, result=Y)(everybody_to_everybody),
        "all_gather_single": round_and_round,
        "broadcast": one_after_the_other,
    }
    for n, shared, seed in product((0, 7, 5003), BOTH, (1, 2)):
        check(usual(form, n, shared=shared, seed=seed), functions[form])


@pytest.mark.ranks(4)
def test_barrier_waits_for_the_last_rank() -> None:
    group = unisono.init()
    arrived = group.empty(1, dtype=torch.int64).zero_()
    everybody = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size)]
    for k, name in enumerate([None, *algorithms("barrier")] * 5, start=1):
        arrived.fill_(k)
        for _ in range(group.rank * 1000):  # the higher the rank, the later it comes
            pass
        unisono.barrier(algorithm=name)
        unisono.all_gather(everybody, arrived)
        assert all(int(one) == k for one in everybody)


@pytest.mark.ranks(3)
def test_shapes_may_differ_where_counts_do_not() -> None:
    rank = unisono.get_rank()
    shape = [(6,), (2, 3), (1, 6, 1)][rank]
    for given in (shape, shape[::-1]):
        tensor = torch.full(given, float(rank))
        unisono.all_reduce(tensor)
        assert tensor.flatten().tolist() == [3.0] * 6
    stacked = torch.empty(3, *shape)
    unisono.all_gather_single(stacked, torch.full(shape, float(rank)))
    assert stacked.flatten().tolist() == [0.0] * 6 + [1.0] * 6 + [2.0] * 6


@pytest.mark.ranks(3)
def test_moved_tensors_keep_their_identity() -> None:
    group = unisono.init()
    layer = torch.nn.Linear(100, 50)
    with torch.no_grad():
        layer.weight.fill_(group.rank + 1.0)
    weight = unisono.share_(layer.weight)
    assert weight is layer.weight
    assert weight.requires_grad
    assert weight.is_leaf
    assert group.heap_first <= weight.data_ptr() < group.heap_end
    assert (weight == group.rank + 1).all()
    unisono.all_reduce(layer.weight, "avg")
    assert (weight == 2).all()
    whole = unisono.empty(3, 7, dtype=torch.int64)
    assert (whole.shape, whole.dtype) == ((3, 7), torch.int64)
    assert unisono.empty((2, 5)).shape == (2, 5)


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COUNT = 50_000


def numbers(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of very different sizes, so that every other order of additions shows."""
    draw = torch.Generator().manual_seed(rank)
    drawn = torch.randn(COUNT, generator=draw, dtype=torch.float64)
    return (drawn * torch.randint(-8, 9, (COUNT,), generator=draw).double().exp2()).to(dtype)


def pieces() -> list[slice]:
    """Parts of the whole, of sizes on both sides of every limit, at even and odd places."""
    return [
        slice(first, first + size)
        for size in (1, 3, 64, 100, 1000, 2047, 2049, 4097, 9_001, 16_385, 33_001)
        for first in (0, 1, 63, 4001)
    ]


def memories(part: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Copies of a part: private, shared, and inside larger tensors of both kinds."""
    group = unisono.init()
    wide = [torch.empty(count + 10, dtype=part.dtype), group.empty(count + 10, dtype=part.dtype)]
    narrow = [torch.empty(count, dtype=part.dtype), group.empty(count, dtype=part.dtype)]
    return [t.copy_(part) for t in (*narrow, *(w[7 : 7 + count] for w in wide))]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.ranks(2, 3, 5)
def test_bits_depend_on_the_numbers_only(dtype: torch.dtype) -> None:
    group = unisono.init()
    data = [numbers(rank, dtype) for rank in range(group.size)]
    calls = 0
    for op in ("sum", "avg"):
        whole = bits(oracle.combine(data, op)).view(COUNT, -1)
        for part in pieces():
            for name in (None, "one_shot", "two_shot"):
                for tensor in memories(data[group.rank][part], part.stop - part.start):
                    unisono.all_reduce(tensor, op, algorithm=name)
                    assert torch.equal(bits(tensor), whole[part].flatten()), (op, part, name, calls % 4)
                    calls += 1
    assert calls == 1056
