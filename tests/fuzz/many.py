"""Calls of many tensors: on a rank, with what must come of them."""

from collections.abc import Callable
from typing import Any

import torch

import unisono
from tests.fuzz.programs import Coalesced
from tests.support import oracle
from tests.support.matrix_driver import exact_data
from tests.support.matrix_layouts import Held

REDUCING = ("all_reduce_coalesced", "reduce_scatter_coalesced", "average_parameters", "average_gradients")
TENSORS = (
    "all_reduce_coalesced", "broadcast_coalesced", "all_gather_coalesced", "reduce_scatter_coalesced",
    "broadcast_module of a mapping", "broadcast_module", "average_parameters", "average_gradients",
)  # fmt: skip
"""The calls; the last three take a module, whose parameters are floating point."""


class _Module(torch.nn.Module):
    """A module with these parameters, or these gradients of parameters that must not change."""

    def __init__(self, tensors: list[torch.Tensor], gradients: bool) -> None:
        super().__init__()
        for k, tensor in enumerate(tensors):
            parameter = torch.nn.Parameter(torch.zeros_like(tensor) if gradients else tensor)
            parameter.grad = tensor if gradients else None
            self.register_parameter(f"tensor_{k}", parameter)


def coalesced(step: Coalesced, group: Any) -> Callable[[], str]:
    """Make the call. Returns what waits for its end, and says what is wrong, or nothing."""
    me, p, form, root = group.rank, group.size, step.form, step.root % group.size
    op = "avg" if form.startswith("average") else step.op
    longer = p if form == "reduce_scatter_coalesced" else 1
    inputs = [exact_data(dtype, op, p, n * longer, step.seed + k) for k, (dtype, n) in enumerate(step.parts)]
    wanted: Callable[[list[torch.Tensor]], list[torch.Tensor]] = {
        "all_reduce_coalesced": lambda ranks: oracle.all_reduce(ranks, op),
        "all_gather_coalesced": oracle.all_gather,
        "reduce_scatter_coalesced": lambda ranks: oracle.reduce_scatter(ranks, op),
        "average_parameters": lambda ranks: oracle.all_reduce(ranks, op),
        "average_gradients": lambda ranks: oracle.all_reduce(ranks, op),
    }.get(form, lambda ranks: oracle.broadcast(ranks, root))
    want = [wanted(ranks)[me] for ranks in inputs]

    def held(values: torch.Tensor, filled: bool) -> Held:
        layout = "strided" if step.strided else "contiguous"
        return Held(layout, len(values), values.dtype, False, values if filled else None)

    given = [held(ranks[me], True) for ranks in inputs]
    taken = given
    if form in ("all_gather_coalesced", "reduce_scatter_coalesced"):
        taken = [held(values, False) for values in want]
    inp, out = ([one.tensor for one in side] for side in (given, taken))
    work = None
    if form.endswith("_coalesced"):
        arguments: list[Any] = [out] if taken is given else [out, inp]
        arguments += [root] if form == "broadcast_coalesced" else [op] if form in REDUCING else []
        work = getattr(unisono, form)(*arguments, group=group, async_op=step.async_op)
    elif form == "broadcast_module of a mapping":
        unisono.broadcast_module({f"{k}": tensor for k, tensor in enumerate(out)}, root, group)
    else:
        module = _Module(out, form == "average_gradients")
        getattr(unisono, form)(module, *((root,) if form == "broadcast_module" else ()), group=group)

    def finish() -> str:
        if work is not None:
            work.wait()
        checks = zip(taken, want, strict=True)
        found = [f"[{k}] {wrong}" for k, pair in enumerate(checks) if (wrong := pair[0].check(pair[1]))]
        return "; ".join(found + [wrong for one in given if taken is not given and (wrong := one.check(None))])

    return finish
