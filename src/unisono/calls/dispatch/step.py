"""`plan_inside`: plan one run of a table, to be made later, on tensors of any layout.

Tensors that a call cannot work on are copied to plain ones (`PlainTensors`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ...base.units import seconds
from ...engine.tensors import as_bits, is_plain, mark_written, needed_by_autograd
from ...ranks.group.group import Group
from .checking import checking
from .drive import Run, drive
from .known import CallKey, keep
from .planning import make_plan
from .request import Request, Tensors

_Pair = tuple[torch.Tensor, torch.Tensor]

Action = Callable[[str | None], Any]
"""Makes a planned call. Takes the user's line, if it is known; returns the result."""


class PlainTensors(NamedTuple):
    """The input and the output of a call, plain: the user's tensors, or copies if these are not plain.

    With `keep_inputs`, a call in place works on copies, too: the user's tensors change only when it has succeeded. A
    call may be planned long before it is made, and be made many times. So each run takes the values first, and gives
    the results back at its end.

    inp, out: the tensors to work on.
    taken, given: pairs of a user's tensor and its copy.
    """

    inp: Tensors
    out: Tensors
    taken: list[_Pair]
    given: list[_Pair]

    @classmethod
    def of(cls, request: Request, group: Group) -> "PlainTensors":
        """The tensors of a call of this group's rank. Copies hold no values yet."""
        copied: list[_Pair] = []

        def plain(tensor: torch.Tensor, keeps: bool = False) -> torch.Tensor:
            if is_plain(tensor) and not keeps:
                return tensor
            bits = as_bits(tensor.data)  # .data: a version counter of its own
            copy = torch.empty_like(bits, memory_format=torch.contiguous_format)
            copied.append((bits, copy))
            return copy.view(tensor.dtype) if copy.dtype != tensor.dtype else copy

        keeps = bool(request.in_place and group.host.config.keep_inputs)
        out = _each(request.out, lambda tensor: plain(tensor, keeps))
        results = list(copied)
        inp = out if request.in_place else _each(request.inp, plain)
        return cls(inp, out, copied, results if request.written_on(group.rank) else [])

    def take(self) -> None:
        """Copy the values of inputs, and of outputs: a rank may keep its output, such as rank 0 in exscan."""
        with torch.inference_mode():  # also for inference tensors, in every mode and on every thread
            for tensor, copy in self.taken:
                copy.copy_(tensor)

    def give(self) -> None:
        """Copy the results to the user's tensors."""
        with torch.inference_mode():
            for tensor, copy in self.given:
                tensor.copy_(copy)


def _each(tensors: Tensors, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    if tensors is None:
        return None
    return change(tensors) if isinstance(tensors, torch.Tensor) else [change(tensor) for tensor in tensors]


class CallOptions(NamedTuple):
    """How to run a call.

    algorithm: None, a name or a function.
    timeout_s: None for the group's.
    """

    group: Group
    async_op: bool = False
    algorithm: Any = None
    timeout_s: float | None = None


def plan_inside(how: CallOptions, request: Request, known_as: CallKey | None = None) -> Action:
    """Plan one run of a table; the returned action runs it. known_as: keep the plan under this name for `shortcut`."""
    group, timeout_s = how.group, None if how.timeout_s is None else seconds(how.timeout_s)
    plain = PlainTensors.of(request, group)
    moved = request._replace(inp=plain.inp, out=plain.out)
    plan = make_plan(group, moved, how.algorithm)
    if known_as is not None and not plain.taken:
        keep(group, plan, known_as, moved)
    run, written = Run.of(plan, moved, how.algorithm), needed_by_autograd(request.written_on(group.rank))

    def action(where: str | None) -> Tensors:
        if plain.taken:
            with checking(group, request.collective):
                plain.take()
        drive(group, run, timeout_s, where)
        if plain.given:
            plain.give()
        mark_written(written)
        return request.out

    return action
