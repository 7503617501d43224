"""Lists of tensors in one call: the same bits as a call for each, whatever they look like, or errors."""

import itertools
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unisono
from tests.fuzz.many import coalesced
from tests.fuzz.programs import Coalesced
from unisono import ArgumentError, MismatchError
from unisono.calls.coalesced import (
    all_gather_coalesced,
    all_reduce_coalesced,
    broadcast_coalesced,
    reduce_scatter_coalesced,
)
from unisono.engine.tensors import first_overlap

SIZES = [1, 3]


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Values that differ between ranks, tensors and elements."""
    generator = torch.Generator().manual_seed(1000 * unisono.get_rank() + seed)
    values = torch.randint(-50, 50, shape, generator=generator)
    return (values.to(torch.float64) / 8).to(dtype) if dtype.is_floating_point else values.to(dtype)


def mixed(scale: int = 1) -> list[torch.Tensor]:
    """All kinds of tensors: dtypes in turn, any layout, nothing, leaves, shared memory."""
    strided = filled((20, 6), torch.float32, 5)[::2, ::3]
    transposed = filled((7, 5), torch.float64, 6).t()
    leaf = torch.nn.Parameter(filled((3, 4, 5), torch.float32, 7))
    shared = unisono.empty(33, dtype=torch.int64).copy_(filled((33,), torch.int64, 8))
    return [
        filled((10 * scale,), torch.float32, 1),
        filled((4, 5), torch.int64, 2),
        strided,
        torch.empty(0, 3),
        transposed,
        leaf,
        filled((), torch.float32, 3),
        shared,
        filled((1000 * scale, 3), torch.bfloat16, 4),
    ]


def same(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for k, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert one.shape == other.shape
        assert torch.equal(one, other), f"tensor {k}"


@pytest.mark.ranks(*SIZES)
def test_all_reduce() -> None:
    for op in ("sum", "avg", "max", torch.distributed.ReduceOp.MIN):
        for _ in range(3):  # the first call looks at the tensors, the others know them
            tensors, singly = mixed(), mixed()
            where = [tensor.data_ptr() for tensor in tensors]
            all_reduce_coalesced(tensors, op)
            for tensor in singly:
                unisono.all_reduce(tensor, op)
            same(tensors, singly)
            assert where == [tensor.data_ptr() for tensor in tensors]
            assert tensors[5].is_leaf
            assert tensors[5].requires_grad


@pytest.mark.parametrize("make", [unisono.premul_sum, torch.distributed._make_nccl_premul_sum])
@pytest.mark.ranks(*SIZES)
def test_inputs_times_factors(make: Callable[[float], Any], ranks: int) -> None:
    """Factors of ranks differ, and those of calls; torch's ops are equal whatever their factors are."""
    rank = unisono.get_rank()
    for factor in (rank + 0.5, rank - 3.25, rank + 0.5):
        op = make(factor)
        tensors, singly = ([t for t in mixed() if t.is_floating_point()] for _ in range(2))
        all_reduce_coalesced(tensors, op)
        for tensor in singly:
            unisono.all_reduce(tensor, op)
        same(tensors, singly)
        outputs, inputs = [torch.empty(5), torch.empty(3)], [filled((n * ranks,), torch.float32, n) for n in (5, 3)]
        before = [tensor.clone() for tensor in inputs]
        reduce_scatter_coalesced(outputs, inputs, op)
        same(inputs, before)
        for output, source in zip(outputs, inputs, strict=True):
            alone = torch.empty_like(output)
            unisono.reduce_scatter_single(alone, source, op)
            assert torch.equal(output, alone)


@pytest.mark.ranks(3)
def test_broadcast_only_reads_its_source() -> None:
    if unisono.get_rank() == 1:
        tensors = [torch.arange(3.0).expand(4, 3), torch.tensor([1 + 2j, 3 - 1j]).conj()]
    else:
        tensors = [torch.zeros(4, 3), torch.zeros(2, dtype=torch.complex64)]
    broadcast_coalesced(tensors, 1)
    same(tensors, [torch.arange(3.0).repeat(4, 1), torch.tensor([1 - 2j, 3 + 1j])])


@pytest.mark.ranks(2, 3)
def test_part_may_be_its_own_block_of_the_whole(ranks: int) -> None:
    me = unisono.get_rank()
    wholes = [filled((ranks, n), torch.float32, n) for n in (5, 3000)]
    expected = [torch.empty_like(whole) for whole in wholes]
    for output, whole in zip(expected, wholes, strict=True):
        unisono.all_gather_single(output, whole[me].clone())
    all_gather_coalesced(wholes, [whole[me] for whole in wholes])
    same(wholes, expected)
    expected = [torch.empty_like(whole[me]) for whole in wholes]
    for output, whole in zip(expected, wholes, strict=True):
        unisono.reduce_scatter_single(output, whole.clone())
    reduce_scatter_coalesced([whole[me] for whole in wholes], wholes)
    same([whole[me] for whole in wholes], expected)


@pytest.mark.ranks(2)
def test_long_lists_take_several_passes() -> None:
    group, parts = unisono.init(), (("float32", 1_500_001), ("float32", 3), ("float32", 900_000))
    before = group.engine.call_number
    assert not coalesced(Coalesced("all_reduce_coalesced", parts), group)()
    assert group.engine.call_number == before + 10  # 9.6 MB, a MiB at a time
    for form in ("all_gather_coalesced", "reduce_scatter_coalesced", "broadcast_coalesced"):
        assert not coalesced(Coalesced(form, (("float64", 300_001), ("float64", 5), ("float64", 100_000))), group)()


@pytest.mark.ranks(3)
def test_coalesced_calls_keep_their_order() -> None:
    tensors, singly = mixed(), mixed()
    first = unisono.all_reduce(tensors[0], async_op=True)
    second = all_reduce_coalesced(tensors, async_op=True)
    third = all_reduce_coalesced(tensors, "max", async_op=True)
    broadcast_coalesced(tensors[:2], 1)  # waits for what runs in the background
    assert first.wait()
    assert second.wait()
    assert third.wait()
    unisono.all_reduce(singly[0])
    for op in ("sum", "max"):
        for tensor in singly:
            unisono.all_reduce(tensor, op)
    same(tensors, singly)


@pytest.mark.ranks(2)
def test_lists_may_be_empty() -> None:
    all_reduce_coalesced([])
    all_reduce_coalesced([torch.empty(0), torch.empty(0, 5)], "max")
    all_gather_coalesced([], [])
    broadcast_coalesced((tensor for tensor in ()), 0)


@pytest.mark.ranks(3)
def test_named_algorithms_and_iterators() -> None:
    model = torch.nn.Linear(30, 40)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, float(unisono.get_rank() + 1))
    for _ in range(2):
        all_reduce_coalesced(model.parameters(), algorithm="ring", timeout_s=30)
    assert all((parameter == 3 * 6.0).all() for parameter in model.parameters())


@pytest.mark.ranks(2)
def test_tensor_that_changes_its_looks_is_seen() -> None:
    storage = torch.arange(12.0) + unisono.get_rank()
    tensor, other = storage[:6], torch.ones(5)
    changes = [
        storage[:3],
        storage[:6].view(2, 3).t(),
        storage[::2],
        storage[:6].view(torch.int32)[:4],
        torch.arange(6.0),
    ]
    methods: list[Callable[[], object]] = [
        *(partial(setattr, tensor, "data", one.clone() if one.is_contiguous() else one) for one in changes),
        lambda: tensor.resize_(3),
        lambda: tensor.set_(storage[4:9]),
        lambda: tensor.resize_(2, 2).t_(),
        tensor.requires_grad_,
    ]
    all_reduce_coalesced([tensor, other])
    for change in methods:
        change()
        expected = tensor.detach().clone()
        unisono.all_reduce(expected)
        all_reduce_coalesced([tensor, other])
        assert torch.equal(tensor, expected)


@pytest.mark.ranks(2)
def test_tensors_that_lose_their_memory_in_a_call() -> None:
    """A call has the tensors' memory of its beginning, which lives until its end."""
    me = unisono.get_rank()
    for k, late in itertools.product(range(3), (0, 1)):
        arrays = [np.full(shape, me + 1.0, np.float32) for shape in ((70_000,), (5, 7))]
        tensors, new = [torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]).t()], torch.full((3,), 7.0)
        refs = [weakref.ref(array) for array in arrays]
        unisono.barrier()
        if me == late:
            time.sleep(0.05)
        work = all_reduce_coalesced(tensors, async_op=True)
        assert work is not None
        for tensor in tensors:
            tensor.data = new if k else new.clone()
        if me != late:
            del arrays
            assert all(ref() is not None for ref in refs)
        work.wait()
        assert new.tolist() == [7.0] * 3
        if me == late:
            assert all((array == 3.0).all() for array in arrays)
        assert [tensor.tolist() for tensor in tensors] == [[7.0] * 3] * 2
        all_reduce_coalesced([tensors[0]])
        assert tensors[0].tolist() == [14.0] * 3


@pytest.mark.ranks(2, 3)
def test_the_plans_of_equal_lists_are_kept(ranks: int) -> None:
    """Also where ranks are late, and for calls between equal calls on other lists."""
    group, floats, integers = unisono.init(), [("float32", n) for n in (7, 300, 1)], [("int64", n) for n in (5, 40)]
    for turn in range(4):
        if turn > 1 and group.rank == turn % ranks:
            time.sleep(0.05)  # longer than the kernel waits at once
        for form, parts, op in (
            ("all_reduce_coalesced", floats, "max"), ("broadcast_coalesced", floats, "sum"),
            ("all_gather_coalesced", integers, "sum"), ("reduce_scatter_coalesced", integers, "sum"),
        ):  # fmt: skip
            assert not coalesced(Coalesced(form, tuple(parts), op, root=turn % ranks, seed=turn), group)()
    plans, group.plans = group.plans, {}
    assert not coalesced(Coalesced("all_reduce_coalesced", tuple(floats), "max", seed=4), group)()
    assert not group.plans
    group.plans = plans


def ones(*counts: int) -> list[torch.Tensor]:
    return [*map(torch.ones, counts)]


@pytest.mark.ranks(2)
def test_known_lists_that_differ() -> None:
    """Ranks that know both lists, and each makes another call; and lists with a tensor twice."""
    for _ in range(2):
        all_reduce_coalesced(ones(3, 5))
        all_reduce_coalesced(ones(4, 4))
    tensors = [ones(3, 5), ones(4, 4)][unisono.get_rank()]
    with pytest.raises(MismatchError, match="2 tensors"):
        all_reduce_coalesced(tensors)
    assert all((tensor == 1).all() for tensor in tensors)
    with pytest.raises(ArgumentError, match="share memory"):
        all_reduce_coalesced(ones(4) * 2)
    tensors = ones(4, 4)
    all_reduce_coalesced(tensors)
    assert all((tensor == 2).all() for tensor in tensors)


@pytest.mark.ranks(2)
def test_columns_of_one_tensor_are_apart() -> None:
    table = torch.arange(12.0).view(4, 3)
    all_reduce_coalesced(list(table.unbind(1)))
    assert torch.equal(table, 2 * torch.arange(12.0).view(4, 3))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6), st.booleans()), max_size=8))
def test_first_overlap_against_the_definition(spans: list[tuple[int, int, bool]]) -> None:
    def meet(first: int, second: int) -> bool:
        (a, n, write), (b, m, other) = spans[first], spans[second]
        return (write or other) and max(a, b) < min(a + n, b + m)

    found = first_overlap(*([span[k] for span in spans] for k in range(3)))
    pairs = {(i, j) for i in range(len(spans)) for j in range(len(spans)) if i != j and meet(i, j)}
    assert (found in pairs) if pairs else (found is None)
