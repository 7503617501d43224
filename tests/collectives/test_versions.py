"""Autograd hears of every tensor that a call has written: what backward would need of it is not there any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import unisono

Worlds = Callable[[int], unisono.World]


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
        "all_reduce of a view": lambda: ([whole], [], some(unisono.all_reduce, whole[::2])),
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


@pytest.mark.parametrize("size", [2, 3])
def test_versions_of_what_is_written(worlds: Worlds, size: int) -> None:
    def work() -> None:
        for name, make in made().items():
            for options in ({}, {}, {"async_op": True}):  # the second time on the fast path
                written, read, call = make()
                before = [tensor._version for tensor in [*written, *read]]
                work = call(**options)
                if options and hasattr(work, "wait"):
                    work.wait()
                after = [tensor._version for tensor in [*written, *read]]
                for k, (then, now) in enumerate(zip(before, after, strict=True)):
                    assert (now > then) == (k < len(written)), (name, options, k)

    worlds(size).run(work)


def test_backward_through_what_a_call_has_overwritten(worlds: Worlds) -> None:
    def work() -> None:
        for _ in range(2):
            weight, data = torch.ones(3, requires_grad=True), torch.ones(3)
            loss = (weight * data).sum()
            unisono.all_reduce(data)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()

    worlds(2).run(work)
