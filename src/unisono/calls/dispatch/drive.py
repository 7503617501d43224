"""`Run`, a plan and its tensors; `drive` and `complete` run it to its end, unless compiled code does at once.

A signal handler, or code that the garbage collector runs, may raise between any two lines of Python. An exception that
ends a call breaks the group, because the ranks may be at different points of the call. If even that fails, for example
in a deep recursion, this rank's next call finds the unfinished one and breaks the group.
"""

import threading
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from typing import Any, NamedTuple, NoReturn, Self

from ...base.errors import NestedCall, WaitTimeout
from ...base.python import tell
from ...base.records import CallRecord
from ...base.units import format_bytes, format_seconds
from ...engine.compile.plan import Plan
from ...engine.compile.program import NO_PLAN
from ...engine.process.nested import caller, check_nested, holds
from ...ranks.failures import attend
from ...ranks.group.abort import give_up
from ...ranks.group.group import Background, Group
from .planning import make_plan
from .request import Request, Tensors, is_one


def take(lock: threading.Lock, timeout_s: float, held: list[threading.Lock]) -> None:
    """Append the lock to `held` when this thread has it, within this time; 0 does not wait.

    Return it by `if held: lock.release()` in a `finally` block. Taking and appending is one step of C code, so no
    signal handler can raise in between and leave the lock taken.
    """
    waits = timeout_s > 0.0
    seconds = min(timeout_s, threading.TIMEOUT_MAX) if waits else -1
    held.extend(compress((lock,), map(lock.acquire, (waits,), (seconds,))))


class Run(NamedTuple):
    """A call that is ready to be made.

    algorithm: as the user's call names it.
    inp, out: the addresses of the tensors, for the kernel.
    memory: the owners of what is there.
    """

    plan: Plan
    request: Request
    algorithm: Any
    inp: int
    out: int
    memory: Sequence[Any]

    @classmethod
    def of(cls, plan: Plan, request: Request, algorithm: Any) -> Self:
        """The call on the request's tensors. It owns their memory, even if they get other storage."""
        (inp, *kept_inp), (out, *kept_out) = _address(request.inp), _address(request.out)
        return cls(plan, request, algorithm, inp, out, [*kept_inp, *kept_out])

    def staged(self, group: Group) -> Plan:
        """The plan that stages this call, which this rank has begun with another plan."""
        if self.plan.program.lowering.cross_memory and not group.engine.crosses_memory:
            group.forget_plans()  # its other plans reach private tensors by system calls, too
        return make_plan(group, self.request, self.algorithm, staged=True)


def _address(tensors: Tensors) -> tuple[Any, ...]:
    """The address for the kernel, and the owners of its memory."""
    if tensors is None:
        return (0,)
    if is_one(tensors):
        return tensors.data_ptr(), tensors.untyped_storage()
    table = array("q", [tensor.data_ptr() for tensor in tensors])
    return table.buffer_info()[0], table, *(tensor.untyped_storage() for tensor in tensors)


def complete(group: Group, run: Run, timeout_s: float | None, where: str | None = None, status: int = NO_PLAN) -> None:
    """Make a call, or go on with it. The caller holds the group's lock, and passes any exception on to `failed`.

    status: what the kernel has returned; NO_PLAN: the call has not begun.
    """
    if status == NO_PLAN:
        status = group.run(run.plan.address, run.inp, run.out, group.state)
    if status:
        staged = partial(run.staged, group)
        attend.attend(group, run.plan, run.inp, run.out, status, timeout_s, where or caller(), staged)


def failed(group: Group, run: Run, error: BaseException, where: str) -> None:
    """Give up a call that this exception has ended, and keep what late ranks may still access."""
    attend.interrupted(group, run.plan, error, where)
    group.hold(run.plan, *run.memory)


@holds("group")
def drive(group: Group, run: Run, timeout_s: float | None, where: str | None = None, status: int = NO_PLAN) -> None:
    """Make a call when its turn has come.

    timeout_s: how long to wait, for other threads of this rank and for other ranks; None: as long as the group does.
    where: the user's line, if it is known.
    status: see `complete`; another thread may have begun the call.
    """
    plan, began = run.plan, time.perf_counter()
    until, made = began + (group.timeout_s if timeout_s is None else timeout_s), False
    behind: Background | None = None
    while not made:
        held: list[threading.Lock] = []
        started = False
        try:
            if behind is not None:
                with suppress(WaitTimeout):
                    behind.finish(max(0.0, until - time.perf_counter()))
            left_s = until - time.perf_counter()
            if group.lock.locked():
                check_nested(group)
            take(group.lock, left_s, held)
            worker = group.worker
            behind = worker if status == NO_PLAN and worker is not None and worker.busy else None  # since just now
            if not held or (behind is not None and left_s <= 0.0):
                _raise_late(group, plan, time.perf_counter() - began, where or caller())
            if behind is None:
                if status == NO_PLAN:
                    check_finished(group, plan.record, where)
                started, left_s = True, max(0.0, until - time.perf_counter())
                complete(group, run, left_s, where, status)
                made = True
        except BaseException as error:
            if started:
                failed(group, run, error, where or caller())
            elif not isinstance(error, NestedCall):  # the other ranks make this call
                give_up(group, f"interrupted by {type(error).__name__}", f"{plan.record} ({where or caller()})")
            raise
        finally:
            if held:
                group.lock.release()
    if group.engine.config.debug:
        _debug_line(group, plan, began)


def check_finished(group: Group, call: CallRecord, where: str | None = None) -> None:
    """Break the group before this call if an exception has ended this rank's last one before it was over."""
    span = group.span
    if group.engine.unfinished if span is None else span.call is not None:
        if span is not None and span.call is not None:
            span.call.drop()
        for inline in (False, True):  # the plan of that call is not known
            group.engine.sign_off(inline=inline)
        give_up(
            group,
            "an exception ended its last call of this group before that was over",
            f"{call} ({where or caller()})",
        )
        group.check_usable()


def _raise_late(group: Group, plan: Plan, waited_s: float, where: str) -> NoReturn:
    """Another thread of this rank is in calls of the group for too long."""
    details = " Another thread of this rank is in a call of this group."
    raise WaitTimeout(f"{plan.record} ({where})", waited_s, (), group.rank, details, group.named)


def _debug_line(group: Group, plan: Plan, began: float) -> None:
    """Write the line of UNISONO_DEBUG=1. began: by `perf_counter`."""
    took, size = format_seconds(time.perf_counter() - began), format_bytes(plan.nbytes)
    who = f"rank {group.rank} of group {group.name!r}" if group.parent else f"rank {group.rank}"
    tell(f"[{who}] {plan.record.text}: {size} in {took}; {plan.why}\n")
