"""Autograd hears of a call that overwrites what backward needs, and of no other call."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch

import unisono
from tests.support.matrix import FORMS, REDUCING, Case
from tests.support.matrix_driver import begin


def tensors_in(given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given]
    return [tensor for one in given for tensor in tensors_in(one)] if isinstance(given, list | tuple) else []


def watched(call: Callable[..., Any], *given: Any, held: bool, **how: Any) -> Any:
    """Make a call. The versions of tensors whose values it has changed are others, if autograd has saved them."""
    tensors, weight = tensors_in(given), torch.ones((), requires_grad=True)
    saved = [weight * tensor for tensor in tensors] if held else []
    before = [(tensor.clone(), tensor._version) for tensor in tensors]
    work = call(*given, **how)
    if work is not None and how.get("async_op"):
        work.wait()
    for k, ((values, version), tensor) in enumerate(zip(before, tensors, strict=True)):
        assert (tensor._version > version) == (held and not torch.equal(values, tensor)), (call.__name__, how, k)
    del saved
    return work


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.ranks(2, 3)
def test_versions_of_what_is_written(held: bool) -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    right, left = (me + 1) % size, (me - 1) % size

    def messages(sent: torch.Tensor, got: torch.Tensor) -> None:
        pending = unisono.isend(sent, right)
        unisono.recv(got, left)
        pending.wait()

    def in_background(sent: torch.Tensor, got: torch.Tensor) -> None:
        for work in (unisono.isend(sent, right), unisono.irecv(got, left)):
            work.wait()

    forms = [form for form in FORMS if form != "exscan"]
    for later, form in product((False, False, True), forms):  # the second time on the fast path
        case = Case(form, "float32", "premul_sum" if form in REDUCING else "-", 6, root=1, async_op=later)
        call = partial(watched, getattr(unisono, form), held=held, async_op=later)
        assert not begin(case, me, size, lambda given, call=call: call(*given))()
    for later in (False, False, True):
        one, two, out, whole = (torch.full((n,), me + n / 2) for n in (4, 5, 4 * size, 4 * size))
        for coalesced, *given in (
            (unisono.broadcast_coalesced, [one, two], 1), (unisono.all_reduce_coalesced, [one, two]),
            (unisono.all_gather_coalesced, [out], [one]), (unisono.reduce_scatter_coalesced, [one], [whole]),
        ):  # fmt: skip
            watched(coalesced, *given, held=held, async_op=later)
        for exchange in (messages, in_background):
            watched(exchange, torch.full((4,), float(me)), torch.full((4,), -1.0), held=held)
        watched(unisono.sendrecv, torch.full((4,), float(me)), right, torch.full((4,), -1.0), left, held=held)


ALIASES: dict[str, tuple[bool, Callable[[torch.Tensor], torch.Tensor]]] = {
    "detached": (True, torch.Tensor.detach),
    "detached, of another layout": (True, lambda tensor: tensor.detach().t()),
    "data": (True, lambda tensor: tensor.data),
    "no_grad": (False, lambda tensor: tensor),
    "no_grad, a view": (False, lambda tensor: tensor.view(-1)),
    "part": (True, lambda tensor: tensor.detach()[1:]),
}
"""Ways to write what a tensor that requires grad has: is grad mode on, and what is passed to the call."""


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
        for (way, (tracked, alias)), again in product(ALIASES.items(), range(2)):
            start = torch.full((4, 4), float(me + 1), requires_grad=True)
            tensor = start if leaf else start * 1
            first, _ = tensor.chunk(2)
            with torch.no_grad():
                flat = tensor.view(-1)
            written = alias(tensor)
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
