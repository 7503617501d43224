"""The fast path of calls on lists of tensors: the plan of an earlier call on such lists, and a table of addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...base.errors import MismatchError
from ...engine.tensors import have_strides, mark_written, needed_by_autograd, use_count
from ...ranks.group import current
from ...ranks.group.group import Group
from .background import begin
from .plan_cache import UNKNOWN, CallKey, ListPlan, as_list
from .request import is_one
from .retry_rules import learn
from .shortcut import run_plan

_data_ptr = torch.Tensor.data_ptr


def list_shortcut(
    group: Group | None, what: CallKey, inp: Any, out: Any, timeout_s: float | None, async_op: bool
) -> Any:
    """As `shortcut`, for calls with a list of tensors as input, output or both. None: this rank has no tensors."""
    if group is None:
        group = current.default
        if group is None:
            return UNKNOWN
    try:
        inputs, outputs = as_list(inp), as_list(out)
        key = what, -1 if is_one(inp) else len(inputs), -1 if is_one(out) else len(outputs)
        tensors = [*inputs, *outputs]
        plans: list[ListPlan] = group.shortcuts[key]
        if not have_strides(tensors):
            return UNKNOWN
        known = next(plan for plan in plans if plan.alike(*tensors))
        addresses = tuple(map(_data_ptr, tensors))
    except (AttributeError, KeyError, RuntimeError, StopIteration, TypeError):
        return UNKNOWN
    if not (timeout_s is None or (timeout_s.__class__ is float and timeout_s >= 0.0)):
        return UNKNOWN
    places = known.places(addresses)
    if places is None:
        return UNKNOWN
    plan = known.plan
    marked: Sequence[torch.Tensor] = ()
    if plan.writes and (known.tracked or max(map(use_count, outputs)) > 1):
        marked = needed_by_autograd(outputs)
    if async_op:  # the user's lists may change while the call waits
        inp, out = (given if given is None or is_one(given) else list(given) for given in (inp, out))
        return begin(group, what, plan, places, inp, out, timeout_s, marked)
    if group.worker is not None and group.worker.busy:  # calls in the background come first
        return UNKNOWN
    try:
        run_plan(group, plan, places[0], places[1], timeout_s)
    except BaseException as error:
        group.hold(plan, *tensors)
        if not isinstance(error, MismatchError) or not learn(group, plan, what, error):
            raise
        return UNKNOWN
    if marked:
        mark_written(marked)
    return None
