"""`plan_inside`: plan one run of a table inside a host, to be made later, on tensors of any layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ..engine.tensors import as_bits, copy_of, make_plain
from ..engine.written import mark_written, needed_by_autograd
from ..errors import MismatchError
from ..membership.group import Group
from ..records import only_lowerings_differ
from ..units import seconds
from .known import What, as_list, keep
from .learn import stage_private
from .mixed import stage_for_a_while, takes_turn, waits_its_turn
from .planning import make_plan
from .request import Request, Tensors, is_one
from .shortcut import run_plan

__all__ = ["Action", "How", "contiguous", "plan_inside"]

Action = Callable[[str | None], Any]
"""Makes a planned call. Takes the user's line, if it is known; returns the result."""


class How(NamedTuple):
    """How to run a call. algorithm: None, a name or a function. timeout_s: None for the group's."""

    group: Group
    async_op: bool = False
    algorithm: Any = None
    timeout_s: float | None = None


def plan_inside(how: How, request: Request, known_as: What | None = None) -> Action:
    """Plan one run of a table; the returned action runs it. known_as: keep the plan under this name for `shortcut`."""
    group = how.group
    inp, out, copy_back = contiguous(request, group)
    plan = make_plan(group, request, inp, out, how.algorithm)
    untouched = _same(inp, request.inp) and (is_one(out) or _same(out, request.out))
    if known_as is not None and untouched and not waits_its_turn(group, plan):
        keep(group, plan, known_as, inp, out)
    inp_address, kept_inp = _address(inp)
    out_address, kept_out = _address(out)
    timeout_s = None if how.timeout_s is None else seconds(how.timeout_s)
    written = needed_by_autograd(request.written_on(group.rank))

    def action(where: str | None) -> Tensors:
        nonlocal plan
        made = False
        while not made:
            staged = takes_turn(group, plan)
            used = make_plan(group, request, inp, out, how.algorithm, staged=True) if staged else plan
            try:
                made = run_plan(group, used, inp_address, out_address, timeout_s, where)
                if not made:
                    stage_private(group)
                    plan = make_plan(group, request, inp, out, how.algorithm)
            except MismatchError as error:
                if not only_lowerings_differ(error.calls, group.size):
                    raise
                stage_for_a_while(group, plan)
            except BaseException:
                group.hold(used, kept_inp, kept_out)
                raise
        copy_back()
        mark_written(written)
        _ = kept_inp, kept_out  # alive until here
        return request.out

    return action


def contiguous(request: Request, group: Group) -> tuple[Tensors, Tensors, Callable[[], None]]:
    """The input and output of a call, contiguous, and a function that copies results back to the user's tensors.

    With `keep_inputs`, a call in place works on copies: the user's tensors change only when it has succeeded.
    """
    written = bool(request.written_on(group.rank))
    keeps = request.in_place and group.host.config.keep_inputs
    back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def result(tensor: torch.Tensor) -> torch.Tensor:
        copy = make_plain(tensor)
        if copy is tensor and keeps:
            copy = copy_of(tensor)
        if copy is not tensor and written:
            back.append((as_bits(tensor.data), as_bits(copy)))  # .data: a version counter of its own
        return copy

    def finish() -> None:
        for tensor, copy in back:
            tensor.copy_(copy)

    def each(tensors: Tensors, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
        if tensors is None:
            return None
        return change(tensors) if isinstance(tensors, torch.Tensor) else [change(tensor) for tensor in tensors]

    out = each(request.out, result)
    inp = out if request.in_place else each(request.inp, make_plain)
    return inp, out, finish


def _same(tensors: Tensors, given: Tensors) -> bool:
    return all(tensor is other for tensor, other in zip(as_list(tensors), as_list(given), strict=True))


def _address(tensors: Tensors) -> tuple[int, Any]:
    """The address for the kernel, and the objects that keep its memory alive, even if the tensors get other storage."""
    if tensors is None:
        return 0, None
    if is_one(tensors):
        return tensors.data_ptr(), tensors.untyped_storage()
    table = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
    return table.ctypes.data, (table, [tensor.untyped_storage() for tensor in tensors])
