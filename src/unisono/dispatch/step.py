"""One run of a table: planned now, made later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..engine.written import mark_written, needed_by_autograd
from ..membership.group import Group
from ..units import seconds
from .contiguous import contiguous
from .planning import make_plan
from .request import Request, Tensors, is_one
from .shortcut import What, keep, run_plan

__all__ = ["Action", "How", "plan_step"]

Action = Callable[[str | None], Any]
"""Makes a call that is planned. It takes the line that made the call, if it is known, and returns the result."""


class How(NamedTuple):
    """How to run a call. algorithm: None, a name or a function. timeout_s: None: as long as the group's calls wait."""

    group: Group
    async_op: bool = False
    algorithm: Any = None
    timeout_s: float | None = None


def plan_step(how: How, request: Request, known_as: What | None = None) -> Action:
    """Plan one run of a table; only what is returned moves. known_as: what `shortcut` will look for."""
    group = how.group
    inp, out, bring_home = contiguous(request, group.rank)
    plan = make_plan(group, request, inp, out, how.algorithm)
    if known_as is not None and inp is request.inp:
        keep(group, plan, known_as, inp, out)
    inp_address, kept_inp = _address(inp)
    out_address, kept_out = _address(out)
    timeout_s = None if how.timeout_s is None else seconds(how.timeout_s)
    written = needed_by_autograd(request.written_on(group.rank))

    def action(where: str | None) -> Tensors:
        run_plan(group, plan, inp_address, out_address, timeout_s, where)
        bring_home()
        mark_written(written)
        _ = kept_inp, kept_out  # alive until here
        return request.out

    return action


def _address(tensors: Tensors) -> tuple[int, Any]:
    """The address that the kernel takes, and what must live as long: the memory, whatever becomes of the tensors."""
    if tensors is None:
        return 0, None
    if is_one(tensors):
        return tensors.data_ptr(), tensors.untyped_storage()
    table = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
    return table.ctypes.data, (table, [tensor.untyped_storage() for tensor in tensors])
