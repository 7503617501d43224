"""Lists of tensors in one call: the same bits as a call for each, whatever they look like, or errors."""

import weakref
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unisono
from tests.support.matrix import FORMS, REDUCING, Case
from tests.support.matrix_driver import begin, forget
from unisono import MismatchError
from unisono.calls.coalesced import (
    all_gather_coalesced,
    all_reduce_coalesced,
    broadcast_coalesced,
    reduce_scatter_coalesced,
)
from unisono.engine.tensors import first_overlap

Kind = tuple[str, int, str]
"""Of a tensor: dtype, elements, and a layout of the matrix."""

KINDS: list[Kind] = [
    ("float32", 10, "contiguous"), ("int64", 20, "offset"), ("float32", 20, "strided"), ("float32", 0, "empty"),
    ("float64", 35, "transposed"), ("float32", 60, "leaf"), ("float32", 1, "scalar"),
    ("bfloat16", 3000, "channels_last"),
]  # fmt: skip
FLOATS = [kind for kind in KINDS if kind[0] != "int64"]
ONLY_READ: list[Kind] = [("float32", 12, "expanded"), ("complex64", 4, "conjugate")]


def listed(form: str, kinds: list[Kind], op: str = "sum", *, seed: int = 0, **case: Any) -> None:
    """Make one call for several tensors. What comes of each is what a call for it alone gives, by the oracle."""
    single, given = f"{form}_single" if f"{form}_single" in FORMS else form, list[list[Any]]()
    cases = [
        Case(single, dtype, op if single in REDUCING else "-", n, layout, seed=seed + k, **case)
        for k, (dtype, n, layout) in enumerate(kinds)
    ]
    ends = [begin(one, unisono.get_rank(), unisono.get_world_size(), given.append) for one in cases]
    lists = [[*column] if isinstance(column[0], torch.Tensor) else column[0] for column in zip(*given, strict=True)]
    places = [tensor.data_ptr() for tensor in lists[0]]
    getattr(unisono, f"{form}_coalesced")(*lists)
    assert [end() for end in ends] == [""] * len(ends)
    assert [tensor.data_ptr() for tensor in lists[0]] == places


@pytest.mark.ranks(1, 3)
def test_same_bits_as_a_call_for_each() -> None:
    for seed, shared in product((0, 0, 7), (False, True)):  # the first call looks at the tensors, others know them
        for op in ("sum", "avg", "max", "min"):
            listed("all_reduce", KINDS, op, seed=seed, shared=shared)
        for form in ("all_reduce", "reduce_scatter"):
            listed(form, FLOATS, "premul_sum", seed=seed, shared=shared)
        listed("reduce_scatter", KINDS, seed=seed, shared=shared)
    for seed, form in product((0, 0, 7), ("broadcast", "all_gather")):
        listed(form, KINDS + ONLY_READ, seed=seed, root=1)


@pytest.mark.parametrize("make", [unisono.premul_sum, torch.distributed._make_nccl_premul_sum])
@pytest.mark.ranks(1, 3)
def test_factors_differ_between_calls(make: Callable[[float], Any], ranks: int) -> None:
    """torch's ops are equal whatever their factors are."""
    for first in (0.5, -3.25, 0.5):
        op, total = make(unisono.get_rank() + first), 4 * sum(rank + first for rank in range(ranks))
        tensors, wholes = [torch.full((n,), 4.0) for n in (5, 3)], [torch.full((n * ranks,), 4.0) for n in (5, 3)]
        all_reduce_coalesced(tensors, op)
        assert [tensor.unique().tolist() for tensor in tensors] == [[total]] * 2
        reduce_scatter_coalesced(tensors, wholes, op)
        assert [tensor.unique().tolist() for tensor in tensors + wholes] == [[total]] * 2 + [[4.0]] * 2


@pytest.mark.parametrize("form", ["all_gather", "reduce_scatter"])
@pytest.mark.ranks(2, 3)
def test_part_may_be_its_own_block_of_the_whole(form: str) -> None:
    listed(form, [("float32", n, "contiguous") for n in (5, 3000)], alias=True)


@pytest.mark.ranks(2)
def test_long_lists_take_several_passes() -> None:
    for form in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        listed(form, [("float64", n, "contiguous") for n in (300_001, 5, 100_000)])
    forget()


@pytest.mark.ranks(3)
def test_coalesced_calls_keep_their_order() -> None:
    tensors = [torch.full((n,), unisono.get_rank() + 1.0) for n in (4, 70_000)]
    works: list[Any] = [
        unisono.all_reduce(tensors[0], "max", async_op=True),  # 3, while the other one is 1, 2 or 3
        all_reduce_coalesced(tensors, async_op=True),
        all_reduce_coalesced(tensors, "max", async_op=True),
    ]
    broadcast_coalesced(tensors[:1], 1)  # waits for what runs in the background
    assert all(work.is_success() for work in works)
    assert [tensor.unique().tolist() for tensor in tensors] == [[9.0], [6.0]]


@pytest.mark.ranks(2)
def test_lists_may_be_empty() -> None:
    all_reduce_coalesced([])
    all_reduce_coalesced([torch.empty(0), torch.empty(0, 5)], "max")
    all_gather_coalesced([], [])
    broadcast_coalesced((tensor for tensor in list[torch.Tensor]()), 0)


@pytest.mark.ranks(3)
def test_named_algorithms_and_iterators() -> None:
    model = torch.nn.Linear(30, 40)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, float(unisono.get_rank() + 1))
    for _ in range(2):
        all_reduce_coalesced(model.parameters(), algorithm="ring", timeout_s=30)
    assert all((parameter == 3 * 6.0).all() for parameter in model.parameters())


@pytest.mark.ranks(2)
def test_call_keeps_the_memory_of_its_beginning() -> None:
    """Tensors get other memory, and nobody else keeps the old one, while the other rank is late."""
    me = unisono.get_rank()
    for late in (0, 1):
        arrays = [np.full(shape, me + 1.0, np.float32) for shape in ((70_000,), (5, 7))]
        tensors, refs = [torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]).t()], [*map(weakref.ref, arrays)]
        if me == late:
            unisono.recv(None, 1 - me)
        work: Any = all_reduce_coalesced(tensors, async_op=True)
        for tensor in tensors:
            tensor.data = torch.full((3,), 7.0)
        if me != late:
            del arrays
            assert all(ref() is not None for ref in refs)
            unisono.send(torch.ones(1), 1 - me)
        work.wait()
        assert me != late or all((array == 3.0).all() for array in arrays)
        assert [tensor.tolist() for tensor in tensors] == [[7.0] * 3] * 2


def ones(*counts: int) -> list[torch.Tensor]:
    return [*map(torch.ones, counts)]


@pytest.mark.ranks(2)
def test_known_lists_that_differ() -> None:
    """Ranks that know both lists, and each makes another call."""
    for _ in range(2):
        all_reduce_coalesced(ones(3, 5))
        all_reduce_coalesced(ones(4, 4))
    tensors = [ones(3, 5), ones(4, 4)][unisono.get_rank()]
    with pytest.raises(MismatchError, match="2 tensors"):
        all_reduce_coalesced(tensors)
    assert all((tensor == 1).all() for tensor in tensors)
    tensors = ones(4, 4)
    all_reduce_coalesced(tensors)
    assert all((tensor == 2).all() for tensor in tensors)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6), st.booleans()), max_size=8))
def test_first_overlap_against_the_definition(spans: list[tuple[int, int, bool]]) -> None:
    def meet(first: int, second: int) -> bool:
        (a, n, write), (b, m, other) = spans[first], spans[second]
        return (write or other) and max(a, b) < min(a + n, b + m)

    found = first_overlap(*([span[k] for span in spans] for k in range(3)))
    pairs = {(i, j) for i in range(len(spans)) for j in range(len(spans)) if i != j and meet(i, j)}
    assert (found in pairs) if pairs else (found is None)
