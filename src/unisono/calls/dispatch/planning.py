"""Make the plan of a checked call: choose the algorithm, compile its table, bind the program."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from ...base.errors import AlgorithmError, ArgumentError
from ...base.records import CallRecord
from ...engine.compile.plan import Blocks, Plan
from ...engine.compile.program import Lowering
from ...engine.reducers import CustomOp
from ...engine.tensors.plain import dtype_name
from ...ranks.group.group import Group
from ...schedule import ADD, BLOCKED, OP, ROUND, Schedule, prove
from ...schedule.algorithms.catalogue import find
from ...schedule.choose import choose, crosses_memory, is_oversubscribed, zero_copy_limit
from ..arguments import scale_name
from .background import patience_ns
from .plan_cache import in_heap
from .request import Request, Tensors, is_one

_MOST_PLANS = 4096
"""How many plans a group keeps, so that a program with ever new sizes does not use ever more memory."""


class PlanKey(NamedTuple):
    """Everything that a plan depends on."""

    collective: str
    op: object
    root: int
    dtype: torch.dtype
    algorithm: Any
    lowering: Lowering
    blocks: Blocks
    words: str
    scale: str
    says: CallRecord | None


def make_plan(
    group: Group, request: Request, inp: Tensors, out: Tensors, algorithm: Any, *, staged: bool = False
) -> Plan:
    """The plan of a request, with this algorithm, or with the one that `choose` returns. Plans are cached.

    staged: stage tensors in shared memory, too.
    """
    like = request.like
    shared = not staged and (not request.in_place or inp is out)
    nbytes, config = like.nbytes * (group.size if request.collective in BLOCKED else 1), group.host.config
    crossed = False
    if shared and is_one(inp) and is_one(out) and request.extents is None:
        mapped = in_heap(group, inp) and in_heap(group, out)
        crossed = not mapped and crosses_memory(request.collective, nbytes, config) and group.host.crosses_memory
        # Small messages are staged: signature and payload share a cache line, which is faster than zero copy.
        shared = crossed or (mapped and nbytes > zero_copy_limit(group.size, config))
    else:
        shared = False
    lists = (inp is not None and not is_one(inp)), (out is not None and not is_one(out))
    blocks = Blocks(like.numel(), like.element_size(), request.extents, *lists)
    lowering, scale = Lowering(shared, request.in_place, crossed), scale_name(like) if like.is_quantized else ""
    key = PlanKey(
        request.collective, request.op, request.root, like.dtype, algorithm, lowering, blocks, request.words, scale,
        request.says,
    )  # fmt: skip
    plan = group.plans.get(key)
    if plan is None:
        if algorithm is None:
            chosen, why = choose(
                request.collective,
                nbytes,
                group.size,
                config,
                oversubscribed=is_oversubscribed(group.host.arena.neighbours),
            )
        else:
            chosen, why = find(request.collective, algorithm), "the call names it"
        schedule = chosen.schedule(group.size, request.root)
        check_order(request, schedule)
        op = request.op if isinstance(request.op, str | CustomOp) else None
        plan = group.host.plan(schedule, lowering, request.record, dtype_name(like.dtype), blocks, op)
        writes, patience = bool(request.written_on(group.rank)), patience_ns(group, nbytes)
        plan = replace(plan, writes=writes, patience_ns=patience, why=why)
        if len(group.plans) >= _MOST_PLANS:
            for old in list(group.plans)[: _MOST_PLANS // 2]:
                group.plans.pop(old, None)
            group.shortcuts.clear()
        group.plans[key] = plan
    return plan


def check_order(request: Request, schedule: Schedule) -> None:
    """Raise ArgumentError if the table combines values in an order that the op does not allow."""
    op, dtype = request.op, request.like.dtype
    if op == "avg" and not (dtype.is_floating_point or dtype.is_complex) and not _in_one_pass(schedule):
        raise ArgumentError(
            f"{request.record}: {schedule.name} rounds partial sums, so the average of {dtype_name(dtype)} tensors "
            "would not be exact; leave algorithm= out, or average floating point tensors"
        )
    if isinstance(op, CustomOp):
        if not op.commutative and (reason := _out_of_order(schedule)):
            raise ArgumentError(
                f"{request.record}: op {op.name!r} is not declared commutative, but {reason}. "
                "Leave algorithm= out, or declare commutative=True if x op y equals y op x"
            )
        if not op.associative and not _in_one_pass(schedule):
            raise ArgumentError(
                f"{request.record}: op {op.name!r} is declared not to be associative, but {schedule.name} combines "
                "partial results; leave algorithm= out"
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
