"""One request, planned and run: at once, or by the group's worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..algorithms.catalogue import find
from ..arguments import dtype_name
from ..choose import choose, one_shot_limit
from ..engine.bind import Plan
from ..engine.program import Lowering
from ..engine.written import mark_written, needed_by_autograd
from ..errors import AlgorithmError, ArgumentError
from ..membership import init
from ..membership.current import get_default
from ..membership.group import Group
from ..ops import CustomOp
from ..schedule import ADD, BLOCKED, OP, ROUND, Schedule, prove
from ..units import seconds
from ..watch import caller
from ..work import Work, Worker
from .contiguous import contiguous
from .entering import entering
from .fast import in_heap, keep, run_plan
from .request import Request, Tensors

__all__ = ["Action", "default_group", "perform", "prepare", "start"]

_MOST_PLANS = 4096
"""How many plans a group keeps; a program with ever new sizes must not grow for ever."""

Action = Callable[[str | None], Any]
"""What runs a call that is planned; it takes the line that made the call, or None, and returns the call's result."""


def default_group() -> Group:
    """The default group; made by `init` where there is none yet."""
    return get_default() or init()


def perform(
    group: Group,
    request: Request,
    async_op: bool,
    algorithm: Any,
    timeout_s: float | None,
    known_as: tuple[object, ...] = (),
) -> Work | None:
    """Do what was asked: None when it is done, or a Work with `async_op`.

    known_as: what `known_plan` asks for beside the tensors; empty: the plan is not kept for it.
    """
    with entering(group, request.collective):
        action = prepare(group, request, algorithm, timeout_s, known_as)
    work = start(group, lambda: request.text, action, async_op)
    return work if async_op else None


def start(group: Group, text: Callable[[], str], action: Action, async_op: bool) -> Any:
    """Run the action now, and return its result; or with `async_op` after all that runs in the background: a Work."""
    if async_op or (group.worker is not None and group.worker.busy):
        if group.worker is None:
            group.worker = Worker(group.name)
        where = caller()
        work: Work = group.worker.submit(text(), lambda: action(where))
        return work if async_op else work.result()
    return action(None)


def prepare(
    group: Group, request: Request, algorithm: Any, timeout_s: float | None, known_as: tuple[object, ...] = ()
) -> Action:
    """Plan a request. Raises what is wrong with it; the action that it returns only moves."""
    inp, out, finish = contiguous(request, group.rank)
    plan = _plan(group, request, inp, out, algorithm)
    if known_as and inp is request.inp and isinstance(inp, torch.Tensor) and isinstance(out, torch.Tensor):
        keep(group, plan, known_as, inp, out)
    inp_address, kept_inp = _address(inp)
    out_address, kept_out = _address(out)
    timeout_s = None if timeout_s is None else seconds(timeout_s)
    written = needed_by_autograd(request.written_on(group.rank))

    def action(where: str | None) -> Tensors:
        run_plan(group, plan, inp_address, out_address, timeout_s, where)
        finish()
        mark_written(written)
        _ = kept_inp, kept_out  # alive until here
        return request.out

    return action


def _plan(group: Group, request: Request, inp: Tensors, out: Tensors, named: Any) -> Plan:
    like = request.like
    shared = not request.in_place or inp is out
    shared = shared and all(isinstance(t, torch.Tensor) and in_heap(group, t) for t in (inp, out))
    nbytes = like.nbytes * (group.size if request.collective in BLOCKED else 1)
    # Small messages travel with their flag, whatever memory the tensors are in.
    shared = shared and request.extents is None and nbytes > one_shot_limit(group.size, group.host.config)
    lowering = Lowering(shared, request.in_place)
    lists = _is_list(inp), _is_list(out)
    key = (
        request.collective, request.op, like.dtype, like.numel(), request.root, named, lowering, lists, request.extents,
        request.words, request.says, request.text if like.is_quantized else "",
    )  # fmt: skip
    plan = group.plans.get(key)
    if plan is None:
        if named is None:
            algorithm = choose(request.collective, nbytes, group.size, group.host.config).algorithm
        else:
            algorithm = find(request.collective, named)
        schedule = algorithm.schedule(group.size, request.root)
        _check_order(request, schedule)
        plan = group.host.plan(
            schedule,
            lowering,
            call=request.text,
            count=like.numel(),
            item=like.element_size(),
            combine=(dtype_name(like.dtype), request.op) if isinstance(request.op, str | CustomOp) else None,
            lists=lists,
            extents=request.extents,
        )
        if len(group.plans) >= _MOST_PLANS:
            for old in list(group.plans)[: _MOST_PLANS // 2]:
                group.plans.pop(old, None)
        group.plans[key] = plan
    return plan


def _check_order(request: Request, schedule: Schedule) -> None:
    """May this table combine with this op? Raises ArgumentError if it takes values in an order that the op forbids."""
    op = request.op
    dtype = request.like.dtype
    if op == "avg" and not (dtype.is_floating_point or dtype.is_complex) and not _in_one_pass(schedule):
        raise ArgumentError(
            f"{request.text}: {schedule.name} rounds partial sums, so the average of "
            f"{dtype_name(dtype)} tensors would not be exact; leave algorithm= out, or average floating "
            "point tensors"
        )
    if isinstance(op, CustomOp):
        if not op.commutative and (reason := _out_of_order(schedule)):
            raise ArgumentError(
                f"{request.text}: op {op.name!r} is not declared commutative, but {reason}. "
                "Leave algorithm= out, or declare commutative=True if x op y equals y op x"
            )
        if not op.associative and not _in_one_pass(schedule):
            raise ArgumentError(
                f"{request.text}: op {op.name!r} is declared not to be associative, but {schedule.name} combines "
                "partial results; leave algorithm= out"
            )


@lru_cache(maxsize=64)
def _out_of_order(schedule: Schedule) -> str:
    """Why this table combines other than neighbours in rank order, or ""."""
    try:
        prove(schedule, ordered=True)
    except AlgorithmError as error:
        return str(error)
    return ""


def _in_one_pass(schedule: Schedule) -> bool:
    """Does the table combine in its first round only, so that every result is made at once, from the left?"""
    rows = schedule.rows
    return bool((rows[rows[:, OP] == ADD][:, ROUND] == 0).all())


def _is_list(tensors: Tensors) -> bool:
    return tensors is not None and not isinstance(tensors, torch.Tensor)


def _address(tensors: Tensors) -> tuple[int, Any]:
    """The address that the kernel takes, and what must live as long: the memory, whatever becomes of the tensors."""
    if tensors is None:
        return 0, None
    if isinstance(tensors, torch.Tensor):
        return tensors.data_ptr(), tensors.untyped_storage()
    table = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
    return table.ctypes.data, (table, [tensor.untyped_storage() for tensor in tensors])
