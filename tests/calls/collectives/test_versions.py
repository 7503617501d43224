"""Autograd hears of a call that overwrites what backward needs, and of no other call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import unisono


def made() -> dict[str, Callable[[], tuple[list[torch.Tensor], list[torch.Tensor], Any]]]:
    """For each call: the tensors that it writes on this rank, those that it does not, and the call."""
    me, size = unisono.get_rank(), unisono.get_world_size()
    one, two = torch.ones(4), torch.ones(4)
    whole, out = torch.ones(4 * size), torch.ones(4 * size)
    parts, outs = list(torch.ones(size, 4).unbind()), [torch.ones(4) for _ in range(size)]
    right, left = (me + 1) % size, (me - 1) % size
    root = me == 1

    def sendrecv(**_: Any) -> Any:
        return unisono.sendrecv(one, right, two, left)

    def messages(**_: Any) -> Any:
        pending = unisono.isend(one, right)
        unisono.recv(two, left)
        return pending.wait()

    def in_background(**_: Any) -> Any:
        works = [unisono.isend(one, right), unisono.irecv(two, left)]
        return [work.wait() for work in works]

    def some(call: Any, *args: Any) -> Callable[..., Any]:
        return lambda **options: call(*args, **options)

    return {
        "all_reduce": lambda: ([one], [], some(unisono.all_reduce, one)),
        "scan": lambda: ([one], [], some(unisono.scan, one)),
        "reduce": lambda: ([one] if root else [], [] if root else [one], some(unisono.reduce, one, 1)),
        "broadcast": lambda: ([] if root else [one], [one] if root else [], some(unisono.broadcast, one, 1)),
        "all_gather": lambda: (outs, [one], some(unisono.all_gather, outs, one)),
        "all_gather_single": lambda: ([out], [one], some(unisono.all_gather_single, out, one)),
        "gather": lambda: (outs if root else [], [one], some(unisono.gather, one, outs if root else None, 1)),
        "scatter": lambda: ([one], parts, some(unisono.scatter, one, parts if root else None, 1)),
        "reduce_scatter": lambda: ([one], parts, some(unisono.reduce_scatter, one, parts)),
        "reduce_scatter_single": lambda: ([one], [whole], some(unisono.reduce_scatter_single, one, whole)),
        "all_to_all": lambda: (outs, parts, some(unisono.all_to_all, outs, parts)),
        "all_to_all_single": lambda: ([out], [whole], some(unisono.all_to_all_single, out, whole)),
        "all_reduce_coalesced": lambda: ([one, two], [], some(unisono.all_reduce_coalesced, [one, two])),
        "broadcast_coalesced": lambda: (
            [] if root else [one, two], [one, two] if root else [], some(unisono.broadcast_coalesced, [one, two], 1)
        ),
        "sendrecv": lambda: ([two], [one], sendrecv),
        "send and recv": lambda: ([two], [one], messages),
        "isend and irecv": lambda: ([two], [one], in_background),
    }  # fmt: skip


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.ranks(2, 3)
def test_versions_of_what_is_written(held: bool) -> None:
    for name, make in made().items():
        for options in ({}, {}, {"async_op": True}):  # the second time on the fast path
            written, read, call = make()
            weight = torch.ones((), requires_grad=True)
            losses = [weight * tensor for tensor in [*written, *read]] if held else []  # each saves the tensor
            before = [tensor._version for tensor in [*written, *read]]
            work = call(**options)
            if options and hasattr(work, "wait"):
                work.wait()
            after = [tensor._version for tensor in [*written, *read]]
            for k, (then, now) in enumerate(zip(before, after, strict=True)):
                assert (now > then) == (held and k < len(written)), (name, options, k)
            del losses


def aliases() -> dict[str, Callable[[torch.Tensor], tuple[bool, torch.Tensor]]]:
    """Ways to write what a tensor that requires grad has: is grad mode on, and what is passed to the call."""
    return {
        "detached": lambda tensor: (True, tensor.detach()),
        "detached, of another layout": lambda tensor: (True, tensor.detach().t()),
        "data": lambda tensor: (True, tensor.data),
        "no_grad": lambda tensor: (False, tensor),
        "no_grad, a view": lambda tensor: (False, tensor.view(-1)),
        "part": lambda tensor: (True, tensor.detach()[1:]),
    }


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.ranks(2)
def test_views_made_before_a_call_stay_usable(leaf: bool) -> None:
    me = unisono.get_rank()
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "broadcast": lambda tensor: unisono.broadcast(tensor, 1),
        "all_reduce": unisono.all_reduce,
        "all_reduce, async": lambda tensor: unisono.all_reduce(tensor, async_op=True).wait(),
        "reduce": lambda tensor: unisono.reduce(tensor, 0),
        "scatter": lambda tensor: unisono.scatter(tensor, [tensor.clone()] * 2 if me else None, 1),
        "all_gather": lambda tensor: unisono.all_gather([tensor, torch.empty_like(tensor)], tensor.clone()),
        "all_to_all": lambda tensor: unisono.all_to_all_single(tensor, tensor.clone()),
        "coalesced": lambda tensor: unisono.all_reduce_coalesced([tensor]),
        "messages": lambda tensor: unisono.recv(tensor, 1) if me == 0 else unisono.send(tensor, 0),
    }
    for name, call in calls.items():
        for way, alias in aliases().items():
            for again in range(2):
                start = torch.full((4, 4), float(me + 1), requires_grad=True)
                tensor = start if leaf else start * 1
                first, _ = tensor.chunk(2)
                with torch.no_grad():
                    flat = tensor.view(-1)
                tracked, written = alias(tensor)
                with torch.set_grad_enabled(tracked):
                    call(written)
                first.sum().backward()
                assert torch.equal(start.grad, torch.cat([torch.ones(2, 4), torch.zeros(2, 4)])), (name, way, again)
                assert flat.requires_grad


@pytest.mark.ranks(2)
def test_leaf_may_be_written_in_grad_mode() -> None:
    for make in (lambda leaf: leaf, lambda leaf: leaf.view(-1)):
        leaf = torch.full((4,), float(unisono.get_rank()), requires_grad=True)
        first, _ = leaf.chunk(2)
        unisono.broadcast(make(leaf), 1)
        (2 * first).sum().backward()
        assert leaf.grad.tolist() == [2, 2, 0, 0]
        assert leaf.tolist() == [1] * 4
