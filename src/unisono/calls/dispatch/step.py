"""`plan_inside`: plan one run of a table, to be made later, on tensors of any layout.

Tensors that a call cannot work on are copied to plain ones (`PlainTensors`).
"""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ...base.errors import InternalError
from ...base.units import seconds
from ...engine.tensors import as_bits, is_plain, mark_written, needed_by_autograd
from ...ranks.group.group import Group
from .checking import checking
from .drive import Run, drive
from .plan_cache import CallKey, as_list, keep
from .planning import make_plan
from .request import Request, Tensors, is_one

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
    group_ref: weak, because a group keeps planned calls: by a cycle it would outlive its last user. Code that makes a
    call holds the group.
    """

    group_ref: weakref.ref[Group]
    async_op: bool = False
    algorithm: Any = None
    timeout_s: float | None = None

    @property
    def group(self) -> Group:
        group = self.group_ref()
        if group is None:
            raise InternalError("a call is made for a group that the program has dropped")
        return group


def plan_inside(how: CallOptions, request: Request, known_as: CallKey | None = None) -> Action:
    """Plan one run of a table; the returned action runs it. known_as: keep the plan under this name for `shortcut`."""
    plain = PlainTensors.of(request, how.group)
    untouched = _same(plain.inp, request.inp) and (is_one(plain.out) or _same(plain.out, request.out))
    move = plan_plain(how, request._replace(inp=plain.inp, out=plain.out), known_as if untouched else None)
    written = needed_by_autograd(request.written_on(how.group.rank))

    def action(where: str | None) -> Tensors:
        if plain.taken:
            with checking(how.group, request.collective):
                plain.take()
        move(where)
        if plain.given:
            plain.give()
        mark_written(written)
        return request.out

    return action


def plan_plain(how: CallOptions, request: Request, known_as: CallKey | None = None) -> Action:
    """Plan one run of a table on plain tensors; the returned action writes them. known_as: see `plan_inside`."""
    inp, out = request.inp, request.out
    timeout_s = None if how.timeout_s is None else seconds(how.timeout_s)
    plan = make_plan(how.group, request, how.algorithm)
    if known_as is not None:
        keep(how.group, plan, known_as, request)
    (inp_address, *kept_inp), (out_address, *kept_out) = kernel_address(inp), kernel_address(out)
    run = Run(plan, request, how.algorithm, inp_address, out_address, [*kept_inp, *kept_out])

    def action(where: str | None) -> Tensors:
        drive(how.group, run, timeout_s, where)
        return out

    return action


def _same(tensors: Tensors, given: Tensors) -> bool:
    return all(tensor is other for tensor, other in zip(as_list(tensors), as_list(given), strict=True))


def kernel_address(tensors: Tensors) -> tuple[Any, ...]:
    """The address for the kernel, and the owner of its memory, even if the tensors get other storage."""
    if tensors is None:
        return (0,)
    if is_one(tensors):
        return tensors.data_ptr(), tensors.untyped_storage()
    table = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
    return table.ctypes.data, table, *(tensor.untyped_storage() for tensor in tensors)
