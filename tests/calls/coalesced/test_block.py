"""`coalescing`: calls that are collected, and made when their block ends. `flatten_`: tensors side by side."""

from __future__ import annotations

import pytest
import torch

import unisono
from tests.support.on_ranks import on_ranks
from unisono import ArgumentError, DTypeError, MismatchError, all_reduce
from unisono.base.config import Config
from unisono.calls.coalesced import coalescing, flatten_


def mine(count: int, seed: int = 0) -> torch.Tensor:
    return torch.arange(float(count)) + 100 * unisono.get_rank() + 10_000 * seed


def calls_made() -> int:
    return unisono.init().host.call_number


@on_ranks(3)
def test_calls_are_made_at_the_end_and_few() -> None:
    tensors, expected = ([mine(n, n) for n in range(1, 30)] for _ in range(2))
    for tensor in expected:
        unisono.all_reduce(tensor, "max")
    before = calls_made()
    with coalescing() as calls:
        for tensor in tensors:
            calls.all_reduce(tensor, "max")
        assert calls_made() == before
        assert torch.equal(tensors[3], mine(4, 4))
    assert calls_made() == before + 1
    assert all(map(torch.equal, tensors, expected))


@pytest.mark.parametrize("async_op", [False, True])
@on_ranks(1, 2, 4)
def test_all_kinds_in_their_order(async_op: bool, ranks: int) -> None:
    """Each call sees what those before it have made, as if they had been made one by one."""
    a, b, c = mine(4 * ranks), mine(4), mine(5, 2)
    with coalescing(async_op=async_op) as calls:
        calls.all_reduce(b)
        calls.all_reduce(c)
        calls.all_gather_single(a, b)
        calls.reduce_scatter_single(b, a, "avg")
        calls.all_reduce(c)
        calls.all_reduce(c)
        calls.broadcast(a, ranks - 1)
        calls.broadcast(b, 0)
    calls.wait()
    x, y, z = mine(4 * ranks), mine(4), mine(5, 2)
    unisono.all_reduce(y)
    for _ in range(3):
        unisono.all_reduce(z)
    unisono.all_gather_single(x, y)
    unisono.reduce_scatter_single(y, x, "avg")
    unisono.broadcast(x, ranks - 1)
    unisono.broadcast(y, 0)
    assert torch.equal(a, x)
    assert torch.equal(b, y)
    assert torch.equal(c, z)


@on_ranks(2)
def test_calls_of_one_kind_that_follow_from_each_other() -> None:
    a, b, c = mine(3), mine(6, 1), mine(12, 2)
    x, y, z = mine(3), mine(6, 1), mine(12, 2)
    with coalescing() as calls:
        calls.all_gather_single(b, a)
        calls.all_gather_single(c, b)  # reads what is written
        calls.reduce_scatter_single(b, c)
        calls.reduce_scatter_single(a, b)
        calls.reduce_scatter_single(b, c)  # writes what is read
    unisono.all_gather_single(y, x)
    unisono.all_gather_single(z, y)
    unisono.reduce_scatter_single(y, z)
    unisono.reduce_scatter_single(x, y)
    unisono.reduce_scatter_single(y, z)
    assert torch.equal(a, x)
    assert torch.equal(b, y)
    assert torch.equal(c, z)


@on_ranks(2)
def test_an_exception_leaves_everything_as_it_was() -> None:
    tensor = mine(5)

    def fail() -> None:
        with coalescing() as calls:
            calls.all_reduce(tensor)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(tensor, mine(5))
    with pytest.raises(DTypeError, match="output"), coalescing() as calls:
        calls.all_reduce(5)
    # To ranks that do make their calls, these were others.
    with pytest.raises(ZeroDivisionError if unisono.get_rank() else MismatchError):
        fail() if unisono.get_rank() else all_reduce(tensor)
    assert torch.equal(tensor, mine(5))
    all_reduce(tensor)


@on_ranks(1, 2, 3)
def test_a_call_on_the_flat_tensor_is_one_on_all(ranks: int) -> None:
    me, group = unisono.get_rank(), unisono.init()
    leaf = torch.nn.Parameter(torch.arange(6.0).view(2, 3) + me)
    tensors = [torch.full((300, 5), 2.0 + me), leaf, torch.tensor([4, 5]) * me, torch.empty(0), torch.tensor(7.0 * me)]
    before = [tensor.detach().clone() for tensor in tensors]
    floats, integers = flatten_(tensors)
    assert all(map(torch.equal, tensors, before))
    assert (floats.numel(), integers.numel()) == (1507, 2)
    assert leaf.is_leaf
    assert leaf.requires_grad
    assert all(group.heap_first <= tensor.data_ptr() < group.heap_end for tensor in tensors if tensor.numel())
    unisono.all_reduce(floats)
    unisono.broadcast(integers, ranks - 1)
    for k in (0, 1, 4):
        unisono.all_reduce(before[k])
    before[2].copy_(torch.tensor([4, 5]) * (ranks - 1))
    assert all(map(torch.equal, tensors, before))


@pytest.mark.parametrize("full", [[0], [1], [0, 1]])
def test_full_memory_means_staging(full: list[int]) -> None:
    """On some ranks or on all; the values are right."""

    def work() -> None:
        me = unisono.get_rank()
        hog = unisono.empty(unisono.init().host.arena.heap_bytes, dtype=torch.uint8) if me in full else None
        for _ in range(20):
            tensors = [torch.arange(count * 1.0) + me for count in (20_000, 3000)]
            (flat,) = flatten_(tensors)
            unisono.all_reduce(flat)
            unisono.all_reduce_coalesced(tensors)
            for tensor in tensors:
                assert torch.equal(tensor, 4 * torch.arange(len(tensor) * 1.0) + 2)
        del hog

    with unisono.World(2, timeout_s=60, config=Config(heap_bytes=1 << 20)) as world:
        world.run(work)


@on_ranks(1)
def test_nothing_and_what_cannot_be_moved() -> None:
    assert flatten_([]) == []
    x = torch.ones(4, 5)
    for tensors, message in (([x, x], "twice"), ([x.t()], r"tensors\[0\]: only contiguous")):
        with pytest.raises(ArgumentError, match=message):
            flatten_(tensors)
