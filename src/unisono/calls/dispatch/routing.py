"""`plan_step`: plan one run of a table, inside a host or over several."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import AlgorithmError, InternalError
from ...base.late_module import LateModule
from ...engine.tensors.written import mark_written, needed_by_autograd
from ...schedule import BLOCKED, DBUF, DCHUNK, DST, SBUF, SCHUNK, SRC, Schedule, X, expand
from ..arguments import scale_name
from .debug import debug_line
from .plain_tensors import PlainTensors
from .plan_cache import CallKey
from .planning import check_order
from .request import Request, Tensors
from .step import Action, CallOptions, plan_inside

if TYPE_CHECKING:
    from ...schedule.choose import over_hosts as spanning
    from .over_hosts import hosts_plan, hosts_run, rank_order
else:  # groups on one host need none of them
    spanning = LateModule("...schedule.choose.over_hosts", __package__)
    hosts_plan, hosts_run = (LateModule(f".over_hosts.{name}", __package__) for name in ("hosts_plan", "hosts_run"))
    rank_order = LateModule(".over_hosts.rank_order", __package__)

_MOST_PLANS = 4096


def plan_step(how: CallOptions, request: Request, known_as: CallKey | None = None) -> Action:
    """Plan one run of a table; the returned action runs it. known_as: keep the plan under this name for `shortcut`."""
    if how.group.span is None:
        return plan_inside(how, request, known_as)
    if rank_order.needs_rank_order(request):
        return rank_order.plan_in_rank_order(how, request, _plan_over_hosts)
    return _plan_over_hosts(how, request)


def _plan_over_hosts(how: CallOptions, request: Request) -> Action:
    plain = PlainTensors.of(request, how.group)
    plan = _plan(how, request)
    written = needed_by_autograd(request.written_on(how.group.rank))

    def action(where: str | None) -> Tensors:
        group, began = how.group, time.perf_counter()
        plain.take()
        hosts_run.run_span(group, plan, request, plain.inp, plain.out, how.timeout_s, where)
        if group.host.config.debug:
            debug_line(group, plan.record, request.like.nbytes, plan.why, began)
        plain.give()
        mark_written(written)
        return request.out

    return action


def _plan(how: CallOptions, request: Request) -> hosts_plan.SpanPlan:
    """The plan of a request. Plans are kept."""
    group, span = how.group, how.group.span
    if span is None:
        raise InternalError(f"group {group.name!r} is on one host")
    scale = scale_name(request.like) if request.like.is_quantized else ""
    key = (
        "plan", request.collective, request.op, request.root, request.like.dtype, request.like.numel(),
        request.extents, request.words, scale, request.in_place, request.says, how.algorithm,
    )  # fmt: skip
    plan: hosts_plan.SpanPlan | None = span.resources.get(key)
    if plan is None:
        nbytes = request.like.nbytes * (group.size if request.collective in BLOCKED else 1)
        chosen = spanning.choose_spanning(request.collective, nbytes, span.hosts, group.host.config, how.algorithm)
        made = chosen.make(request.collective, span.hosts, request.root)
        if chosen.table is not None:
            check_order(request, made.schedule())
            _check_places(request, made.schedule())
        pieces = chosen.pieces if request.extents is None else 1
        plan = hosts_plan.plan_span(group, request, made, pieces, chosen.why)
        if len(span.resources) > _MOST_PLANS:
            plans = [key for key in span.resources if isinstance(key, tuple) and key[0] == "plan"]
            for old in plans[: _MOST_PLANS // 2]:
                span.resources.pop(old, None)
        span.resources[key] = plan
    return plan


def _check_places(request: Request, table: Schedule) -> None:
    """Raise AlgorithmError if the table moves chunks to places of others, which may have other sizes."""
    blocked = request.collective in BLOCKED
    rows, per = expand(table), table.chunks // table.ranks if blocked else table.chunks
    moves_chunks = bool((rows[:, SCHUNK] % per != rows[:, DCHUNK] % per).any())
    sizes = []
    for rank, buffer, chunk in ((SRC, SBUF, SCHUNK), (DST, DBUF, DCHUNK)):
        block, of_pair = rows[:, chunk] // per, rows[:, rank]
        if table.collective == "all_to_all":  # a rank has the blocks that it sends in X, in Y those that it receives
            block = np.where(rows[:, buffer] == X, of_pair * table.ranks + block, block * table.ranks + of_pair)
        sizes.append(block)
    moves_blocks = request.extents is not None and bool((sizes[0] != sizes[1]).any())
    if moves_chunks or moves_blocks:
        what, change = ("chunks", "") if moves_chunks else ("blocks", ", or give blocks of one size")
        raise AlgorithmError(
            f"{request.record}: {table.name} moves {what} to places of others, which may have other sizes over hosts; "
            f"leave algorithm= out{change}"
        )
