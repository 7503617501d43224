"""The fast path of every collective: find the plan of an earlier call like this one, and run it."""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import torch

from ..engine.plan import Plan
from ..engine.written import mark_written, needed_by_autograd, use_count
from ..errors import MismatchError
from ..membership import current
from ..membership.group import Group
from ..records import only_lowerings_differ, only_sizes_differ
from ..units import format_bytes, format_seconds
from ..watch import attend, caller, interrupted
from .mixed import stage_for_a_while
from .request import Tensors, is_one

__all__ = ["ShortcutKey", "What", "ask_for_sizes", "in_heap", "keep", "run_plan", "shortcut"]

What = tuple[str, Any, int, Any]
"""The call as the user makes it: collective, op, root and algorithm."""

_BLOCKS = ("all_gather", "reduce_scatter", "all_to_all")
_ALIKE_AGAIN = 16
"""After so many calls with blocks of one size, a collective stops exchanging sizes at once."""


class ShortcutKey(NamedTuple):
    """The key of a shortcut: the call, and the properties of input and output that its plan depends on."""

    what: What
    dtype: torch.dtype | None
    count_in: int
    count_out: int
    shared_in: bool
    shared_out: bool


def shortcut(group: Group | None, what: What, inp: Any, out: Any, timeout_s: float | None = None) -> bool:
    """Make the call, if one like it has been planned before. False: it must be checked and planned.

    inp, out: tensors, or None for a barrier. Also False if the ranks find that the sizes of their blocks differ, or who
    has tensors in shared memory, after adding the call to `group.uneven` or `group.mixed`.
    """
    if group is None:
        group = current.default
        if group is None:
            return False
    try:
        if inp is None:
            first = second = 0
            plan: Plan = group.shortcuts[what, None, 0, 0, False, False]
        else:
            heap, end = group.heap_first, group.heap_end
            first = second = inp.data_ptr()
            count = count_out = inp.numel()
            if out is not inp:
                second, count_out = out.data_ptr(), out.numel()
                if (first < second + out.nbytes and second < first + inp.nbytes) or out.dtype is not inp.dtype:
                    return False
                if not (second and out.is_contiguous() and out.is_cpu) or (count_out == 1 and out.is_neg()):
                    return False
            # A plain tuple is as good as a ShortcutKey, and faster.
            plan = group.shortcuts[what, inp.dtype, count, count_out, heap <= first < end, heap <= second < end]
            # Of negative views (imag of a conjugate) only those with one element are contiguous.
            if not (first and inp.is_contiguous() and inp.is_cpu) or (count == 1 and inp.is_neg()):
                return False
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return False
    # Calls in the background come first.
    if (group.worker is not None and group.worker.busy) or not (timeout_s is None or timeout_s.__class__ is float):
        return False
    group.lock.acquire()
    try:
        if status := group.run(plan.address, first, second, group.state):
            attend(group, plan, first, second, status, timeout_s, caller())
    except MismatchError as error:
        if only_lowerings_differ(error.calls, group.size):
            stage_for_a_while(group, plan)
        elif what[0] in _BLOCKS and only_sizes_differ(error.calls, group.size):
            ask_for_sizes(group, what[0], what[2])
        else:
            raise
        return False
    except BaseException as error:
        interrupted(group, plan, error, caller())
        raise
    finally:
        group.lock.release()
    if plan.writes and (out.requires_grad or use_count(out) > 1):
        mark_written(needed_by_autograd((out,)))
    return True


def run_plan(group: Group, plan: Plan, inp: int, out: int, timeout_s: float | None, where: str | None = None) -> None:
    """Run a plan on the tensors at these addresses. where: the user's line, if it is known."""
    began = time.perf_counter()
    with group.lock:
        try:
            if status := group.run(plan.address, inp, out, group.state):
                attend(group, plan, inp, out, status, timeout_s, where or caller())
        except BaseException as error:
            interrupted(group, plan, error, where or caller())
            raise
    if group.host.config.debug:
        took = format_seconds(time.perf_counter() - began)
        call = f"[rank {group.rank}] {plan.record.text}: {format_bytes(plan.nbytes)} in {took}; {plan.why}"
        sys.stderr.write(f"{call}\n")


def keep(group: Group, plan: Plan, what: What, inp: Tensors, out: Tensors) -> None:
    """Keep the plan for `shortcut`, if it is one for whole tensors."""
    if group.host.config.debug:  # `shortcut` prints no debug line
        return
    if what[0] == "barrier":
        group.shortcuts[ShortcutKey(what, None, 0, 0, False, False)] = plan
    elif is_one(inp) and is_one(out) and not (inp.is_complex() or inp.is_quantized):  # it knows no conjugate views
        where = in_heap(group, inp), in_heap(group, out)
        group.shortcuts[ShortcutKey(what, inp.dtype, inp.numel(), out.numel(), *where)] = plan


def ask_for_sizes(group: Group, collective: str, root: int) -> None:
    """Drop the shortcuts of this collective, so that its calls exchange sizes until blocks have one size again."""
    group.uneven[collective, root] = _ALIKE_AGAIN
    for key in [key for key in group.shortcuts if key.what[0] == collective]:
        del group.shortcuts[key]


def in_heap(group: Group, tensor: torch.Tensor) -> bool:
    """Does the tensor lie in this rank's heap?"""
    return group.heap_first <= tensor.data_ptr() < group.heap_end
