"""barrier: no rank goes on before all have come."""

from __future__ import annotations

from typing import Any

import torch

from ..dispatch import Request, default_group, perform, run_plan
from ..membership.group import Group
from ..work import Work

__all__ = ["barrier"]

_NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")


def barrier(
    group: Group | None = None, async_op: bool = False, *, algorithm: Any = None, timeout_s: float | None = None
) -> Work | None:
    """Return when every rank of the group has called this."""
    group = default_group() if group is None else group
    if algorithm is None and not async_op and group.plans and (group.worker is None or not group.worker.busy):
        # What `dispatch.fast.keep` has kept of the first barrier.
        plan = group.plans.get((("barrier",), torch.uint8, 0, 0, False, False))
        if plan is not None:
            run_plan(group, plan, 0, 0, timeout_s)
            return None
    request = Request("barrier", _NOTHING, _NOTHING, _NOTHING, in_place=True)
    known_as = ("barrier",) if algorithm is None else ()
    return perform(group, request, async_op, algorithm, timeout_s, known_as)
