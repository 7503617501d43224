"""`flatten_`: tensors side by side."""

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from unisono import ArgumentError
from unisono.base.config import Config
from unisono.calls.models import flatten_


@pytest.mark.ranks(1, 2, 3)
def test_call_on_the_flat_tensor_is_one_on_all(ranks: int) -> None:
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
@in_new_world(2, config=Config(heap_bytes=1 << 20))
def test_full_memory_means_staging(full: list[int]) -> None:
    """On some ranks or on all; the values are right."""
    me = unisono.get_rank()
    hog = unisono.empty(unisono.init().engine.arena.heap_bytes, dtype=torch.uint8) if me in full else None
    for _ in range(20):
        tensors = [torch.arange(count * 1.0) + me for count in (20_000, 3000)]
        (flat,) = flatten_(tensors)
        unisono.all_reduce(flat)
        unisono.all_reduce_coalesced(tensors)
        for tensor in tensors:
            assert torch.equal(tensor, 4 * torch.arange(len(tensor) * 1.0) + 2)
    del hog


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.ranks(2)
def test_moved_tensors_keep_inference_mode(inside: bool) -> None:
    """Inference tensors stay usable, and parameters can still be trained."""
    me = unisono.get_rank()
    with torch.inference_mode():
        tensor = torch.full((2, 2), me + 1.0)
    weight = torch.nn.Parameter(torch.ones(3))
    with torch.inference_mode(inside):
        for move in (lambda: flatten_([tensor, weight]), lambda: [*map(unisono.share_, (tensor, weight))]) * 2:
            move()
            unisono.all_reduce(tensor.view(4))
    assert tensor.tolist() == [[24.0, 24.0]] * 2
    assert tensor.is_inference()
    weight.square().sum().backward()
    torch.optim.SGD([weight], 0.5).step()
    assert weight.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.ranks(1)
def test_flatten_takes_nothing_and_refuses() -> None:
    assert flatten_([]) == []
    x = torch.ones(4, 5)
    for tensors, message in (([x, x], "twice"), ([x.t()], r"tensors\[0\]: got a tensor that is not contiguous")):
        with pytest.raises(ArgumentError, match=message):
            flatten_(tensors)
