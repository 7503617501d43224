"""Make the plan of a checked call: choose the algorithm, compile its table, bind the program."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ...base.config import Config
from ...base.errors import AlgorithmError, ArgumentError
from ...base.linux import processors
from ...base.records import digest
from ...engine.compile.plan import Blocks, Plan
from ...engine.compile.program import Lowering, PlanWord
from ...engine.reducers import CustomOp
from ...engine.tensors import dtype_name
from ...hosts.span import Span
from ...ranks.group.group import Group
from ...schedule import ADD, BLOCKED, OP, ROUND, Schedule, prove
from ...schedule.algorithms.catalogue import find
from ...schedule.choose import choose, crosses_memory, lane_limits, zero_copy_limit
from ...schedule.combine import pipeline
from ...schedule.exchange import file_algorithm
from ..arguments import scale_name
from .request import Request, is_one

_MOST_PLANS = 4096  # the most plans of a group, so that a program with ever new sizes does not use ever more memory
_BRIEF_NS = 30_000  # about the cost of a change to the worker's thread and back, see `known`
_BYTES_PER_NS = 4  # about the bytes that a call moves per nanosecond
_INLINE_BYTES = 1 << 20  # if ranks have spare processors, longer calls run on the worker while the caller computes


def make_plan(group: Group, request: Request, algorithm: Any, *, staged: bool = False) -> Plan:
    """The plan of a request, with this algorithm, or with the one that `choose` returns. Plans are cached.

    staged: stage tensors in shared memory, too.
    """
    like, inp, out = request.like, request.inp, request.out
    nbytes, config = like.nbytes * (group.size if request.collective in BLOCKED else 1), group.engine.config
    shared = crossed = False
    in_place = request.in_place and inp is not out
    if is_one(inp) and is_one(out) and not staged and not in_place and request.counts is None and group.span is None:
        mapped = all(group.heap_first <= tensor.data_ptr() < group.heap_end for tensor in (inp, out))
        crossed = not mapped and crosses_memory(request.collective, nbytes, config) and group.engine.crosses_memory
        # Small messages are staged: signature and payload share a cache line, which is faster than zero copy.
        shared = crossed or (mapped and nbytes > zero_copy_limit(group.size, config))
    has = inp is not None, out is not None
    blocks = Blocks(
        like.numel(), like.element_size(), request.counts, has[0] and not is_one(inp), has[1] and not is_one(out)
    )
    lowering, scale = Lowering(shared, request.in_place, crossed), scale_name(like)
    # Everything that a plan depends on: the request without its tensors, what counts of these, and how it is made.
    key = request.collective, *request[4:], like.dtype, scale, has, blocks, algorithm, lowering
    plan = group.plans.get(key)
    if plan is None:
        algorithm = file_algorithm(algorithm) or algorithm
        if group.span is None:
            plan = _on_one_host(group, request, algorithm, lowering, blocks, nbytes)
        else:
            plan = _over_hosts(group, group.span, request, algorithm, lowering, blocks, nbytes)
        if len(group.plans) >= _MOST_PLANS:
            group.forget_plans()
        group.plans[key] = plan
    return plan


def _on_one_host(
    group: Group, request: Request, algorithm: Any, lowering: Lowering, blocks: Blocks, nbytes: int
) -> Plan:
    if algorithm is None:
        crowd = group.engine.arena.oversubscribed
        chosen, why = choose(request.collective, nbytes, group.size, group.engine.config, oversubscribed=crowd)
    else:
        chosen, why = find(request.collective, algorithm), "the call names it"
    schedule = chosen.schedule(group.size, request.root)
    if schedule.hosts is not None:  # of a table that was made for several
        schedule = schedule.replace(hosts=None)
    check_order(request, schedule)
    op = request.op if isinstance(request.op, str | CustomOp) else None
    plan = group.engine.plan(schedule, lowering, request.record, dtype_name(request.like.dtype), blocks, op)
    if _may_share(group.engine.config, nbytes):
        arena = group.engine.arena
        here = lane_limits.Processors(processors(), arena.processors, arena.neighbours, torch.get_num_threads())
        lanes = lane_limits.choose_lanes(nbytes, here, group.engine.config)
        group.helpers.share(plan, group.words, lanes.number)
        why += f"; {lanes.why}" if lanes.why else ""
    writes, patience = bool(request.written_on(group.rank)), patience_ns(group, nbytes)
    return replace(plan, writes=writes, patience_ns=patience, why=why)


def _may_share(config: Config, nbytes: int) -> bool:
    """May a call have several lanes? This is quick, and most calls may not."""
    return config.lanes != 1 and nbytes > config.lane_bytes


def patience_ns(group: Group, nbytes: int) -> int:
    """How long a call in the background may wait for a peer on the caller's thread; 0: it starts on the worker."""
    if not group.engine.processors_to_spare:
        return max(_BRIEF_NS, nbytes // _BYTES_PER_NS)
    return _BRIEF_NS if nbytes <= _INLINE_BYTES else 0


def _over_hosts(
    group: Group, span: Span, request: Request, algorithm: Any, lowering: Lowering, blocks: Blocks, nbytes: int
) -> Plan:
    from ...schedule.choose.over_hosts import choose_spanning  # calls on one host do without

    in_one_pass = not _may_combine_parts(request)
    chosen = choose_spanning(
        request.collective, nbytes, span.hosts, group.engine.config, algorithm, in_one_pass=in_one_pass
    )
    schedule = chosen.make(request.collective, span.hosts, request.root)
    pieces = chosen.pieces if request.counts is None else 1
    op, dtype = request.op if isinstance(request.op, str | CustomOp) else None, dtype_name(request.like.dtype)
    name = f"{schedule.name} over {span.hosts.text}"
    check_order(request, schedule.replace(name=name))

    while True:
        whole, words = (pipeline(schedule, pieces), f"{name}, in {pieces} pieces") if pieces > 1 else (schedule, name)
        whole = whole.replace(name=words, hosts=span.hosts)
        try:
            plan = group.engine.plan(whole, lowering, request.record, dtype, blocks, op)
            break
        except AlgorithmError:  # pieces of a large group may be more steps than can be counted
            if pieces == 1:
                raise
            pieces //= 2
    plan.words[PlanWord.TAGS] = np.uint64(digest(span.gid, plan.signature)).astype(np.int64)
    return replace(plan, writes=bool(request.written_on(group.rank)), why=chosen.why)


def _may_combine_parts(request: Request) -> bool:
    """May partial results be combined, in any order? Not if the op forbids it; an average of integers is of the sum."""
    op, dtype = request.op, request.like.dtype
    if isinstance(op, CustomOp):
        return op.commutative and op.associative
    return op != "avg" or dtype.is_floating_point or dtype.is_complex


def check_order(request: Request, schedule: Schedule) -> None:
    """Raise ArgumentError if the table combines values in an order that the op does not allow."""
    op, dtype = request.op, request.like.dtype
    if op == "avg" and not (dtype.is_floating_point or dtype.is_complex) and not _in_one_pass(schedule):
        raise ArgumentError(
            f"{request.record}: {schedule.name} rounds partial sums, so the average of {dtype_name(dtype)} tensors is "
            "not exact. Leave out algorithm=, or average floating-point tensors."
        )
    if isinstance(op, CustomOp):
        if not op.commutative and (reason := _out_of_order(schedule)):
            raise ArgumentError(
                f"{request.record}: op {op.name!r} is not declared commutative, but {reason}. Leave out algorithm=, "
                "or declare commutative=True if x op y equals y op x."
            )
        if not op.associative and not _in_one_pass(schedule):
            raise ArgumentError(
                f"{request.record}: op {op.name!r} is declared not associative, but {schedule.name} combines partial "
                "results. Leave out algorithm=."
            )


@lru_cache(maxsize=64)
def _out_of_order(schedule: Schedule) -> str:
    """Why this table needs a commutative op; "" if it combines neighbours in rank order only."""
    try:
        prove(schedule, ordered=True)
    except AlgorithmError as error:
        return str(error)
    return ""


def _in_one_pass(schedule: Schedule) -> bool:
    """Does the table combine in its first round only, so that each result is made in one pass from the left?"""
    rows = schedule.rows
    return bool((rows[rows[:, OP] == ADD][:, ROUND] == 0).all())
