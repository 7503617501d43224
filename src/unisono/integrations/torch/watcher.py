"""The thread that watches groups of Gloo or NCCL: it looks at the other ranks' processes and logs, and aborts groups.

It looks ten times a second, in a large job less often. A rank that has gone ends the groups in which a call needs it.
Calls that differ are told on standard error, and end their group once a rank waits there. A call that waits for long is
told as in our own groups.
"""

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch.distributed import DistError

from ...base.errors import MismatchError, PeerGone, UnisonoError
from ...base.python import tell
from ...base.records import CallRecord, Departure, DepartureKind
from ...engine.logs.rank_logs import LoggedCall
from ...engine.process.alive import ending_in_words
from ...engine.process.nested import user_line
from ...ranks.failures.attend import odd_ones
from ...ranks.failures.stall import Stall
from ...ranks.group.group import Group
from .cpp_calls import CppCalls
from .flight_recorder import IN_CPP, NCCL
from .methods import FORMS
from .to_torch import for_torch
from .watched_calls import WatchedCall, WatchedGroup, groups, waits

_LOOK_S = 0.1
_FEW = 16  # ranks of a larger job look less often, since each looks at all others
_CAUSE_S = 1.0
"""How long a call that has failed looks for the cause: a process may end a little later than its connections."""
_LAST_S = 1.0  # how long a wait may go on after a rank has gone that has made its part, as far as its log tells
_MISMATCH_S = 0.5
"""How often ranks compare calls and tell what they wait for, and how long one waits in a call until it does so: then a
difference may be the reason."""
_MOST_NAMED = 4
_WELL = Departure(DepartureKind.DIED, ending_in_words(0))
"""How processes end by `os._exit(0)`, which run no functions of `atexit`."""
_FOLLOWS = ("gloo", DistError.__name__, "DistBackendError", PeerGone.__name__, MismatchError.__name__)
"""Words in the error of a rank whose call has failed because of another rank."""
_UNEVEN = {form.collective for form in FORMS.values() if not form.alike}


class Watcher:
    """Watches the groups of one world of this process, as long as `world` is open.

    world: our group of the ranks of torch's default group, or of a group across jobs.
    """

    def __init__(self, world: Group) -> None:
        self.world = world
        self._lock = threading.Lock()
        self._stalls: dict[object, tuple[WatchedCall, float, Stall]] = {}
        """Thread, or group for a call from C++ -> the call in which it waits, and since when."""
        self._seen: dict[Any, WatchedCall] = {}
        self._cpp: dict[WatchedGroup, CppCalls] = {}
        self._compare_at = 0.0
        self._thread = threading.Thread(target=self._run, name="unisono watches", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self.world.closed:
            with suppress(UnisonoError):  # a group has been closed meanwhile
                self.look()
            time.sleep(_LOOK_S * min(max(1.0, self.world.size / _FEW), 4.0))

    def cause(self, *failed: WatchedGroup, sure: bool = True) -> Any:
        """Why a call of one of these groups has just failed: see `WatchedGroup.failed`.

        sure: it has failed. Otherwise only a process that has died is a reason, and one whose connections are closed
        is waited for until it has ended.
        """
        until, self._compare_at = time.monotonic() + _CAUSE_S, 0.0
        while all(watched.failed is None and not watched.group.closed for watched in failed):
            # Does a process end now? The kernel closes its connections first.
            late = time.monotonic() >= until or not (
                sure or any(not self._departures(x) and x.broken() for x in failed)
            )
            for watched in failed:
                if self._lock.acquire(timeout=_CAUSE_S):  # not where the thread that watches waits in NCCL's abort
                    try:
                        gone = next(iter(self._departures(watched)), None)
                        if gone is not None and _blame(gone) <= (0 if not sure else 4 if late else 2):
                            self._end_by(watched, *gone)
                    finally:
                        self._lock.release()
            if late:
                break
            time.sleep(_LOOK_S / 10)
        return next((watched.failed for watched in failed if watched.failed is not None), None)

    def last_look(self, error: BaseException | None) -> None:
        """The program ends, by this error: tell the cause, unless it is told. The thread had no time to see it."""
        mine = [watched for watched in self._mine() if not watched.group.closed]
        while error is not None and not isinstance(error, DistError) and "gloo" not in f"{error}":
            error = error.__cause__ or error.__context__
        if mine and not self.world.closed:
            self.cause(*mine, sure=error is not None)

    def _is_mine(self, watched: WatchedGroup) -> bool:
        return watched.group.world is self.world

    def _mine(self) -> list[WatchedGroup]:
        return [watched for watched in list(groups.values()) if self._is_mine(watched)]

    def look(self) -> None:
        """Look once at all groups."""
        now = time.monotonic()
        with self._lock:
            ended = self._see_waits(now)
            compares = bool(ended) or now >= self._compare_at
            for watched in self._mine():
                if watched.failed is not None or watched.group.closed:
                    continue
                mine = [(one, since, stall) for one, since, stall in self._stalls.values() if one.watched is watched]
                if self._ended_by_gone(watched, [call for call, _, _ in mine], now):
                    continue
                stuck = watched in ended or any(now - since > _MISMATCH_S for _, since, _ in mine)
                if compares and self._mismatch(watched, stuck=stuck):
                    continue
                for call, since, stall in mine if compares else ():
                    if now - since >= _MISMATCH_S:
                        missing = self._missing(call)
                        stall.look(missing, now - since, self._last(call, missing))
            if compares:
                self._compare_at = now + _MISMATCH_S

    def _see_waits(self, now: float) -> set[object]:
        """Returns the groups in which a call from C++ has ended: it may have failed."""
        seen: dict[Any, WatchedCall] = {
            thread: call for thread, call in {**waits}.items() if self._is_mine(call.watched)
        }
        watching = [watched for watched in self._mine() if not watched.group.closed]
        self._cpp = {watched: self._cpp.get(watched) or CppCalls(watched) for watched in watching}
        seen |= {watched: call for watched, calls in self._cpp.items() if (call := calls.look()) is not None}
        over = {thread for thread in self._stalls if seen.get(thread) is not self._seen[thread]}
        for thread in over:
            self._stalls.pop(thread)[2].end()
        self._seen = seen
        frames = sys._current_frames() if seen.keys() - self._stalls.keys() else {}  # noqa: SLF001  a documented function
        for thread in seen.keys() - self._stalls.keys():
            call = seen[thread]
            if not call.watched.group.closed:
                frame = frames.get(thread)
                where = user_line(frame) if frame else call.record.where or "?"
                since = self._cpp[thread].since if isinstance(thread, WatchedGroup) else now
                self._stalls[thread] = call, since, Stall(call.watched.group, call.text(where))
        return {key for key in over if isinstance(key, WatchedGroup)}

    @staticmethod
    def _departures(watched: WatchedGroup) -> list[tuple[int, Departure]]:
        """The ranks that have gone, and how; first those that have not gone because of another."""
        others = [rank for rank in range(watched.group.size) if rank != watched.group.rank]
        return sorted([(rank, how) for rank in others if (how := watched.group.liveness.gone(rank))], key=_blame)

    def _ended_by_gone(self, watched: WatchedGroup, mine: Sequence[WatchedCall], now: float) -> bool:
        for rank, how in self._departures(watched):
            since = watched.gone.setdefault(rank, now)
            if not mine and (call := self._asked(watched)):
                mine = [call]
            log = self._log(watched, rank)
            proofs = [self._has_left(log, rank, call) for call in mine]
            late = now - since > _LAST_S and not any(proofs)
            if not all(proofs) and (not how.in_order or late):
                self._end_by(watched, rank, how)
                return True
            if late and (mine or (how.how in (DepartureKind.DIED, DepartureKind.RAISED) and how != _WELL)):
                self._end_by(watched, rank, how)
                return True
        return False

    def _asked(self, watched: WatchedGroup) -> WatchedCall | None:
        """The call of C++ code, or of NCCL, that goes on now."""
        calls = self._cpp.setdefault(watched, CppCalls(watched))
        calls.look()
        return calls.ask()

    @staticmethod
    def _log(watched: WatchedGroup, rank: int) -> Mapping[int, LoggedCall]:
        return {one.number: one for one in watched.group.engine.arena.log(rank).read()}

    @staticmethod
    def _has_left(log: Mapping[int, LoggedCall], rank: int, call: WatchedCall) -> bool:
        """Has a rank that has gone done its part of the call, as far as its log tells?"""
        if not call.number:
            return call.peer not in (rank, -1)
        one = log.get(call.number)
        return one is not None and bool(one.left) and not one.background

    def _end_by(self, watched: WatchedGroup, rank: int, how: Departure) -> None:
        group = watched.group
        pid = group.engine.arena.board(rank).pid

        def gone(call: str) -> UnisonoError:
            return PeerGone(rank, pid, how, group.rank, call, group.named, foreign=True)

        if (error := self._difference(watched, range(group.size))) is not None:  # it comes first
            self._end(watched, lambda _: error.again(), error)
            return
        calls = [stall.call for call, _, stall in self._stalls.values() if call.watched is watched]
        here = [call for call in (*waits.values(), self._asked(watched)) if call and call.watched is watched]
        calls += [call.text(call.record.where or "?") for call in here]
        self._end(watched, gone, gone(calls[0] if calls else f"group {group.name!r}"))

    def _end(self, watched: WatchedGroup, why: Callable[[str], UnisonoError], error: UnisonoError) -> None:
        if watched.failed is None:
            watched.failed = why
            self._tell(watched, error)
            if watched.backend == NCCL and self._asked(watched):
                _interrupt(error)
            watched.abort()

    def _tell(self, watched: WatchedGroup, error: UnisonoError) -> None:
        if not watched.told:
            watched.told = True
            tell(f"unisono: {error}\n")

    def _missing(self, call: WatchedCall) -> tuple[int, ...]:
        """The ranks for which a call waits: those that have not made it, else those that have not left it."""
        group = call.watched.group
        others = [rank for rank in range(group.size) if rank != group.rank]
        if not call.number:
            return (call.peer,) if call.peer >= 0 else tuple(others)
        logs = {rank: group.engine.arena.log(rank) for rank in others}
        absent = tuple(rank for rank, log in logs.items() if log.newest < call.number)
        if absent:
            return absent
        inside = [rank for rank in others if not self._has_left(self._log(call.watched, rank), rank, call)]
        return tuple(inside or others)

    @staticmethod
    def _last(call: WatchedCall, missing: Sequence[int]) -> str:
        """How far the ranks are that have not made this call."""
        log = call.watched.group.engine.arena.log
        return ", ".join(f"#{log(rank).newest}" for rank in missing[:_MOST_NAMED] if log(rank).newest < call.number)

    def _mismatch(self, watched: WatchedGroup, *, stuck: bool) -> bool:
        """Compare the calls since the last look: with all ranks if this one is stuck, otherwise with the next one."""
        group = watched.group
        error = self._difference(watched, range(group.size) if stuck else (group.rank, (group.rank + 1) % group.size))
        if error is None:
            return False
        if stuck:
            self._end(watched, lambda _: error.again(), error)
        else:
            self._tell(watched, error)
        return stuck

    def _difference(self, watched: WatchedGroup, ranks: Sequence[int]) -> MismatchError | None:
        """The error of the first call, since the last look, that differs between these ranks."""
        logs = {rank: self._log(watched, rank) for rank in ranks}
        numbers = sorted(number for number in logs[watched.group.rank] if number > watched.compared)
        for number in numbers:
            calls = {rank: self._record(watched, rank, log[number]) for rank, log in logs.items() if number in log}
            known = {rank: call for rank, call in calls.items() if call}
            if len(known) == len(calls) and _differ([*known.values()]):
                return self._error(watched, number, known)
            if len(known) == watched.group.size:
                watched.compared = number
        return None

    def _record(self, watched: WatchedGroup, rank: int, one: LoggedCall) -> CallRecord | None:
        """What a rank has called; None if it is no longer known."""
        note = self.world.engine.arena.plan_registry(watched.group.world_ranks[rank]).plan(one.note)  # type: ignore[union-attr]
        return note.record if note else None

    def _error(self, watched: WatchedGroup, number: int, known: Mapping[int, CallRecord]) -> MismatchError:
        """The error of the call of this number. known: calls that have been read, and may have left the logs since."""
        group, calls = watched.group, dict(known)
        for rank in set(range(group.size)) - calls.keys():
            one = self._log(watched, rank).get(number)
            calls[rank] = (self._record(watched, rank, one) if one else None) or CallRecord("")
        return MismatchError(number, calls, odd_ones(calls), group.named, foreign=True)


def _interrupt(error: UnisonoError) -> None:
    """Let the main thread raise this error when its wait for a GPU ends, by which torch says nothing."""
    thread = threading.main_thread().ident
    if thread not in waits:
        kind = type(for_torch(error))
        here = {"__init__": lambda one: one.__dict__.update(vars(error)), "__str__": lambda _: f"{error}"}
        raised = type(kind.__name__, (kind,), {**here, "__module__": kind.__module__})
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), ctypes.py_object(raised))


def _blame(gone: tuple[int, Departure]) -> int:
    """The less, the likelier has this rank gone for a reason of its own, and without its part of the others' calls."""
    how = gone[1]
    if how.how is DepartureKind.RAISED:
        return 4 if any(word in how.words for word in _FOLLOWS) else 1
    return {DepartureKind.DIED: 0, DepartureKind.ENDED: 2}.get(how.how, 3) if how != _WELL else 3


def _differ(calls: Sequence[CallRecord]) -> bool:
    """Do calls differ in what ranks must agree on, as far as it is known?"""
    in_cpp = sum(call.words == IN_CPP for call in calls)
    if 0 < in_cpp < len(calls):
        return len({call.collective for call in calls}) > 1
    return len({one._replace(where="", counts=() if one.collective in _UNEVEN else one.counts) for one in calls}) > 1
