"""The fast path of every collective: find the plan of an earlier call like this one, and run it.

Its key is made of the unchecked call.

An asynchronous call starts on the caller's thread, and goes on on the group's worker if peers are late: to change
threads and back costs as much as ten small calls. So while the worker is idle the kernel runs at once, with a short
limit on each of its waits. If it comes back unfinished, the worker goes on where it stands. From then on the worker is
busy, and other threads that make calls of the group wait for it.

The limit equals the cost of passing on, so at worst a call costs twice as much as with the better of both. Without a
spare processor, the worker takes the caller's, and both drive each other's data out of its caches: then passing on
costs about as much as the call itself.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import torch

from ...base.python import is_from_below
from ...engine.compile.plan import Plan
from ...engine.compile.program import DONE, NO_PLAN, EntryWord, KnownWord, StateWord
from ...engine.kernels import kernel
from ...engine.process.nested import caller, check_nested, holds
from ...engine.rank import interpreter
from ...engine.tensors import EXPORTER, ONLY_BITS, mark_written, needed_by_autograd, use_count
from ...ranks.group import current
from ...ranks.group.group import Group
from ..arguments import blank
from ..work import FinishedWork, Work, Worker, worker_of
from .checking import checking
from .drive import Run, check_finished, complete, drive, failed
from .request import Request, Tensors, is_one

CallKey = tuple[str, Any, int, Any, *tuple[str, ...]]
"""The call as the user makes it: collective, op, root and algorithm; of a coalesced call also its tensors in words."""

UNKNOWN: Any = type("Unknown", (), {"__doc__": "What a fast path returns for a call that must be checked."})()

_OWN_BLOCK = "all_gather", "reduce_scatter"
"""The collectives in which the smaller tensor may be this rank's block of the larger one."""
_AMBIGUOUS = {torch.int8, torch.uint8, *ONLY_BITS}
"""Dtypes that DLPack does not tell apart."""
_KERNELS = "known.call", "known.find", "known.enter"
_KEY = EntryWord.PLAN  # words of a key
_LOOK_UP = int(StateWord.LOOK_UP_NS)


class KnownCalls:
    """The plans of calls of one kind, which differ in their tensors only.

    plans: address -> plan, and its request without tensors.
    table: the address of the same plans by the keys of their tensors, for `call` and `find` of kernels/known.
    run: the kernel that `call` runs.
    """

    def __init__(self, group: Group, collective: str) -> None:
        self._header = group.heap_first, group.heap_end, group.rank if collective in _OWN_BLOCK else -1
        self.plans: dict[int, tuple[Plan, Request]] = {}
        self._entries: dict[tuple[int, ...], tuple[int, int]] = {}  # key -> address of the plan, and TO_CHECK
        self._tables: list[array[int]] = []  # another thread may still read an old one
        self.run, self.call, self.find, self._enter = interpreter(), *map(kernel, _KERNELS)
        self._make_table(8)

    def _make_table(self, size: int) -> None:
        table = array("q", bytes(8 * (KnownWord.WORDS + EntryWord.WORDS * size)))
        table[: KnownWord.WORDS] = array("q", [*self._header, size - 1])
        address, _ = table.buffer_info()
        for key, (plan, to_check) in list(self._entries.items()):
            self._enter(address, *key, plan, to_check)
        self._tables.append(table)
        self.table, self._most = address, size // 2

    def add(self, plan: Plan, request: Request) -> None:
        """Keep the plan, if the table can have such tensors."""
        inp, out = request.inp, request.out
        words, tensors = array("q", bytes(8 * _KEY)), () if inp is None else (inp,) if out is inp else (inp, out)
        if self.find(self.table, words.buffer_info()[0], EXPORTER, *tensors) < 0:
            return
        like = blank(request.like.numel(), request.like.dtype)
        key, to_check = tuple(words), int(inp is not None and like.dtype in _AMBIGUOUS)
        self.plans[plan.address] = plan, request._replace(like=like, inp=None, out=None)
        self._entries[key] = plan.address, to_check
        if len(self._entries) > self._most:
            self._make_table(4 * self._most)
        self._enter(self.table, *key, plan.address, to_check)


def keep(group: Group, plan: Plan, what: CallKey, request: Request) -> None:
    """Keep the plan for the fast paths, if they know such tensors."""
    if group.engine.config.debug:  # the fast paths print no debug line
        return
    inp, out = request.inp, request.out
    if what[0] == "barrier" or (is_one(inp) and is_one(out) and not inp.is_complex()):  # it may be conjugate
        known: KnownCalls = group.shortcuts.get(what) or group.shortcuts.setdefault(what, KnownCalls(group, what[0]))
        known.add(plan, request)


@holds("group")
def shortcut(
    group: Group | None,
    what: CallKey,
    inp: Any,
    out: Any,
    timeout_s: float | None = None,
    async_op: bool = False,
    where: str | None = None,
) -> Any:
    """Make the call, if one like it has been planned before, or return UNKNOWN: it must be checked and planned.

    inp, out: tensors, or None for a barrier. Returns None, or with async_op a Work.
    where: the user's line, if it is known.
    """
    if group is None:
        group = current.default
        if group is None:
            return UNKNOWN
    try:
        known: KnownCalls = group.shortcuts[what]
        if inp is not None and (inp.is_neg() or (out is not inp and out.is_neg())):  # DLPack does not tell
            return UNKNOWN
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        if is_from_below(error):
            with checking(group, what[0]):
                raise
        return UNKNOWN
    if not (timeout_s is None or (timeout_s.__class__ is float and timeout_s >= 0.0 and group.span is None)):
        return UNKNOWN
    if async_op:
        run = _find(known, what, inp, out) if group.worker is not None else None  # `Call.run` starts the first worker
        if run is None:
            return UNKNOWN
        return _begin(group, run, timeout_s, _marked(run, out))
    lock, run, status = group.lock, None, NO_PLAN
    if lock.locked():
        check_nested(group)
        return UNKNOWN  # it waits for another thread, but not for longer than this call may take
    with lock:
        if group.worker is not None and group.worker.busy:  # calls in the background come first
            return UNKNOWN
        try:
            if group.run is known.run:
                if out is not inp:
                    status = known.call(known.table, EXPORTER, group.state, inp, out)
                elif inp is None:
                    status = known.call(known.table, EXPORTER, group.state)
                else:
                    status = known.call(known.table, EXPORTER, group.state, inp)
            if status:
                run = _find(known, what, inp, out)
                if run is None:
                    return UNKNOWN
                if status == NO_PLAN:
                    check_finished(group, run.plan.record)
                complete(group, run, timeout_s, where, status)
        except BaseException as error:
            run = run or _find(known, what, inp, out)
            if run is not None:
                failed(group, run, error, where or caller())
            raise
    if out is not None and (out.requires_grad or use_count(out) > 1):
        run = run or _find(known, what, inp, out)
        if run is not None:
            mark_written(_marked(run, out))
    return None


@holds("group")
def _begin(group: Group, run: Run, timeout_s: float | None, marked: Sequence[torch.Tensor]) -> Work[Any]:
    """Start an asynchronous call, and return its work. marked: see `_marked`."""
    worker, status, begun = worker_of(group), NO_PLAN, False
    try:
        is_free = not (worker.busy or group.lock.locked())
        if is_free and run.plan.patience_ns:
            with group.lock:
                if not worker.busy:
                    check_finished(group, run.plan.record)
                    words, begun = group.words, True
                    usual, words[_LOOK_UP] = words[_LOOK_UP], run.plan.patience_ns
                    try:
                        status = group.run(run.plan.address, run.inp, run.out, group.state)
                    finally:
                        words[_LOOK_UP] = usual
                if status != DONE and begun and worker.busy:  # with a call of a signal handler, say: it comes later
                    complete(group, run, timeout_s, status=status)
                    status = DONE
                elif status != DONE and not worker.is_this_thread:  # now: no other thread may begin a call in between
                    return _pass_on(worker, group, run, timeout_s, marked, status)
    except BaseException as error:
        if begun:
            failed(group, run, error, caller())
        raise
    if status != DONE:
        return _pass_on(worker, group, run, timeout_s, marked, status)
    if marked:
        mark_written(marked)
    return FinishedWork(run.request.out)


def _pass_on(
    worker: Worker, group: Group, run: Run, timeout_s: float | None, marked: Sequence[torch.Tensor], status: int
) -> Work[Any]:
    """Let the worker make the call; or finish it, if the kernel came back with this status."""
    where = caller()
    run = run._replace(memory=[tensor.untyped_storage() for tensor in run.memory])

    def action() -> Tensors:
        number = group.engine.call_number
        drive(group, run, timeout_s, where, status)
        group.engine.log.mark_background(number)
        mark_written(marked)
        return run.request.out

    return worker.submit(run.plan.record, action)


def _marked(run: Run, out: Any) -> Sequence[torch.Tensor]:
    """The output, if autograd may need its old value."""
    held = run.plan.writes and (out.requires_grad or use_count(out) > 1)
    return needed_by_autograd((out,)) if held else ()


def _find(known: KnownCalls, what: CallKey, inp: Any, out: Any) -> Run | None:
    """The plan that is known for these tensors, ready to run; None if there is none."""
    tensors = () if inp is None else (inp,) if out is inp else (inp, out)
    found = known.plans.get(known.find(known.table, 0, EXPORTER, *tensors))
    if found is None:
        return None
    plan, request = found
    if any(tensor.dtype is not request.like.dtype for tensor in tensors):
        return None
    first, second = (0, 0) if inp is None else (inp.data_ptr(), out.data_ptr())
    return Run(plan, request._replace(inp=inp, out=out), what[3], first, second, tensors)
