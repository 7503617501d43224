"""From a checked call to the kernel: the group, the algorithm, the plan, and the run, at once or in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .algorithms.catalogue import find
from .arguments import count_name, dtype_name
from .choose import choose, one_shot_limit
from .engine.bind import Plan
from .engine.program import Lowering
from .errors import ArgumentError
from .membership import init
from .membership.current import get_default
from .membership.group import Group
from .schedule import ADD, BLOCKED, OP, ROUND
from .watch import attend, caller, interrupted
from .work import Work, Worker

__all__ = ["Request", "default_group", "finish_plan", "known_plan", "perform", "run_plan"]

_MOST_PLANS = 4096
"""How many plans a group keeps; a program with ever new sizes must not grow for ever."""

Tensors = torch.Tensor | Sequence[torch.Tensor] | None


@dataclass(frozen=True)
class Request:
    """A checked call.

    like: a block as users see it; the tensor itself where any cut will do. inp, out: a tensor, a list with one block
    per rank, or None where this rank has none. in_place: they are one.
    """

    collective: str
    like: torch.Tensor
    inp: Tensors
    out: Tensors
    op: str | None = None
    root: int = 0
    in_place: bool = False

    @property
    def text(self) -> str:
        """The call in words: `broadcast(float32[10], src=2)`. Ranks whose words differ do not run together."""
        if self.collective == "barrier":
            return "barrier()"
        root = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}.get(self.collective)
        details = [count_name(self.like)] + [f"{root}={self.root}"] * bool(root) + [self.op or ""] * bool(self.op)
        return f"{self.collective}({', '.join(details)})"


def default_group() -> Group:
    """The default group; made by `init` where there is none yet."""
    return get_default() or init()


def known_plan(group: Group, inp: torch.Tensor, out: torch.Tensor, *what: object) -> Plan | None:
    """The plan of an earlier call like this one, if it can be run at once: the fast path of calls on whole tensors."""
    try:
        first, last = group.heap_first, group.heap_end
        a = b = inp.data_ptr()
        count = size = inp.numel()
        if out is not inp:
            b, size = out.data_ptr(), out.numel()
            if (a < b + out.nbytes and b < a + inp.nbytes) or out.dtype is not inp.dtype:
                return None
            if not (out.is_contiguous() and out.is_cpu) or (size == 1 and out.is_neg()):
                return None
        plan = group.plans.get((what, inp.dtype, count, size, first <= a < last, first <= b < last))
        if plan is None or not (inp.is_contiguous() and inp.is_cpu) or (count == 1 and inp.is_neg()):
            return None
        # Whatever runs in the background comes first.
        return plan if group.worker is None or not group.worker.busy else None  # noqa: TRY300  one way through
    except (AttributeError, RuntimeError, TypeError):
        return None


def run_plan(group: Group, plan: Plan, inp: int, out: int, timeout_s: float | None, where: str | None = None) -> None:
    """Run a plan on these addresses, and come back when it is done."""
    with group.lock:
        try:
            if status := group.run(plan.address, inp, out, group.state):
                finish_plan(group, plan, inp, out, timeout_s, status, where)
        except BaseException as error:
            interrupted(group, plan, error, where or caller())
            raise


def finish_plan(
    group: Group, plan: Plan, inp: int, out: int, timeout_s: float | None, status: int, where: str | None = None
) -> None:
    """Bring a run to its end that came back with this status."""
    attend(group, plan, lambda: group.run(plan.address, inp, out, group.state), status, timeout_s, where or caller())


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
    group.check_usable()
    inp, out, finish = _contiguous(request, group.rank)
    shared = not request.in_place or inp is out
    shared = shared and all(isinstance(t, torch.Tensor) and _in_heap(group, t) for t in (inp, out))
    nbytes = request.like.nbytes * (group.size if request.collective in BLOCKED else 1)
    # Small messages travel with their flag, whatever memory the tensors are in.
    shared = shared and nbytes > one_shot_limit(group.size, group.host.config)
    plan = _plan(group, request, algorithm, nbytes, Lowering(shared, request.in_place), (_is_list(inp), _is_list(out)))
    if known_as and inp is request.inp and isinstance(inp, torch.Tensor) and isinstance(out, torch.Tensor):
        _keep(group, plan, known_as, inp, out)
    inp_address, kept_inp = _address(inp)
    out_address, kept_out = _address(out)

    def action(where: str | None = None) -> None:
        run_plan(group, plan, inp_address, out_address, timeout_s, where)
        finish()
        _ = inp, out, kept_inp, kept_out  # alive until here

    if async_op or (group.worker is not None and group.worker.busy):
        if group.worker is None:
            group.worker = Worker(group.name)
        where = caller()
        work: Work = group.worker.submit(request.text, lambda: action(where))
        if async_op:
            return work
        work.wait()
        return None
    action()
    return None


def _keep(group: Group, plan: Plan, what: tuple[object, ...], inp: torch.Tensor, out: torch.Tensor) -> None:
    """Let the fast path find the plan: `known_plan`, or for a tensor in place its own unrolled look-up."""
    if inp.is_complex():
        return  # the fast path does not look for conjugate views
    where = _in_heap(group, inp), _in_heap(group, out)
    key: tuple[object, ...] = (what, inp.dtype, inp.numel(), out.numel(), *where)
    if what[0] == "all_reduce":
        key = (inp.dtype, inp.numel(), *what[1:], where[0])
    group.plans[key] = plan


def _plan(
    group: Group, request: Request, named: Any, nbytes: int, lowering: Lowering, lists: tuple[bool, bool]
) -> Plan:
    like = request.like
    key = (request.collective, request.op, like.dtype, like.numel(), request.root, named, lowering, lists)
    plan = group.plans.get(key)
    if plan is None:
        if named is None:
            algorithm = choose(request.collective, nbytes, group.size, group.host.config).algorithm
        else:
            algorithm = find(request.collective, named)
        schedule = algorithm.schedule(group.size, request.root)
        if request.op == "avg" and not like.dtype.is_floating_point and not _in_one_pass(schedule.rows):
            raise ArgumentError(
                f"{request.text}: {algorithm.full_name} rounds partial sums, so the average of "
                f"{dtype_name(like.dtype)} tensors would not be exact; leave algorithm= out, or average floating point "
                "tensors"
            )
        plan = group.host.plan(
            schedule,
            lowering,
            call=request.text,
            count=like.numel(),
            item=like.element_size(),
            combine=(dtype_name(like.dtype), request.op) if request.op else None,
            lists=lists,
        )
        if len(group.plans) >= _MOST_PLANS:
            for old in list(group.plans)[: _MOST_PLANS // 2]:
                group.plans.pop(old, None)
        group.plans[key] = plan
    return plan


def _in_one_pass(rows: np.ndarray[Any, Any]) -> bool:
    """Does the table combine in its first round only, so that every sum is made at once?"""
    return bool((rows[rows[:, OP] == ADD][:, ROUND] == 0).all())


def _is_list(tensors: Tensors) -> bool:
    return tensors is not None and not isinstance(tensors, torch.Tensor)


def _in_heap(group: Group, tensor: torch.Tensor) -> bool:
    return group.heap_first <= tensor.data_ptr() < group.heap_end


def _address(tensors: Tensors) -> tuple[int, Any]:
    """The address that the kernel takes, and what must live as long."""
    if tensors is None:
        return 0, None
    if isinstance(tensors, torch.Tensor):
        return tensors.data_ptr(), tensors
    table = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
    return table.ctypes.data, table


def _contiguous(request: Request, rank: int) -> tuple[Tensors, Tensors, Callable[[], None]]:
    """The same tensors, contiguous: inputs are copied before, results copied back after, where they are not."""
    only_read = request.collective == "broadcast" and rank == request.root
    back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def dense(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    def result(tensor: torch.Tensor) -> torch.Tensor:
        copy = dense(tensor)
        if copy is not tensor and not only_read:
            back.append((tensor.detach(), copy))
        return copy

    def finish() -> None:
        for tensor, copy in back:
            tensor.copy_(copy)

    def each(tensors: Tensors, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
        if tensors is None:
            return None
        return change(tensors) if isinstance(tensors, torch.Tensor) else [change(tensor) for tensor in tensors]

    out = each(request.out, result)
    inp = out if request.in_place else each(request.inp, dense)
    return inp, out, finish
