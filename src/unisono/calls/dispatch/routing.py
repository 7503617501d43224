"""`plan_step`: plan one run of a table, inside a host or over several."""

from __future__ import annotations

from .over_hosts.hosts_run import Relay
from .over_hosts.rank_order import needs_rank_order, plan_in_rank_order
from .plan_cache import CallKey
from .request import Request
from .step import Action, CallOptions, plan_inside


def plan_step(how: CallOptions, request: Request, known_as: CallKey | None = None) -> Action:
    """Plan one run of a table; the returned action runs it. known_as: keep the plan under this name for `shortcut`."""
    Relay.serve(how.group)
    if how.group.span is not None and needs_rank_order(request):
        return plan_in_rank_order(how, request, plan_inside)
    return plan_inside(how, request, known_as)
