"""`plan_step`: plan one run of a table, inside a host or over several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.late_module import LateModule
from .plan_cache import CallKey
from .request import Request
from .step import Action, CallOptions, plan_inside

if TYPE_CHECKING:
    from .over_hosts import hosts_run, rank_order
else:  # groups on one host need none of them
    hosts_run, rank_order = (LateModule(f".over_hosts.{name}", __package__) for name in ("hosts_run", "rank_order"))


def plan_step(how: CallOptions, request: Request, known_as: CallKey | None = None) -> Action:
    """Plan one run of a table; the returned action runs it. known_as: keep the plan under this name for `shortcut`."""
    if how.group.span is not None:
        hosts_run.Relay.serve(how.group, how.group.span)
        if rank_order.needs_rank_order(request):
            return rank_order.plan_in_rank_order(how, request, plan_inside)
    return plan_inside(how, request, known_as)
