"""Collect the reports of ranks that work on a task, and turn them into one list of results, or one exception.

Meanwhile forward the ranks' output, and notice which ranks die.
"""

import codecs
import io
import os
import selectors
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, cast

from ...base.errors import ArgumentError, PeerGone, RankFailed, UnisonoError, WaitTimeout
from ...base.fd_channel import Channel, remaining
from ...base.records import DepartureKind
from ...base.units import ranks_text
from ...engine.memory.arena import Arena
from ...engine.process.alive import ending_in_words, is_ending
from .launch_messages import STARTED, Report, unpack

_PIPE_BYTES = 1 << 20  # more than a pipe holds: one read empties the pipe


class RankOutput:
    """Where ranks' `stdout` or `stderr` goes.

    If the parent's stream has a file behind it (terminal, redirection), the ranks write to that file. If it has none
    (notebook, captured by a test), or where lines get a prefix, the ranks write to a pipe, and the thread that waits
    for the ranks forwards whole lines.
    """

    def __init__(self, name: str, prefix: str = "") -> None:
        self._name, self._prefix = name, prefix
        self._pipe: tuple[int, int] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""

    def hand_out(self) -> int:
        """The file descriptor that ranks should write to from now on."""
        stream = getattr(sys, self._name)
        with suppress(AttributeError, OSError, ValueError):  # there is none, its reader has gone, it has been closed
            stream.flush()
        # Streams of other classes answer fileno() with a file that the user does not see.
        if isinstance(stream, io.TextIOWrapper) and not self._prefix:
            with suppress(OSError, ValueError):  # the stream has only a buffer
                return stream.fileno()
        if self._pipe is None:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[0], False)
            for end in self._pipe:
                weakref.finalize(self, os.close, end)
        return self._pipe[1]

    @property
    def pipe_end(self) -> int | None:
        """The descriptor to watch for output to forward, or None."""
        return self._pipe[0] if self._pipe else None

    def forward(self) -> None:
        """Print the whole lines that have arrived."""
        self._line += self._read()
        lines, newline, self._line = self._line.rpartition("\n")
        self._print(lines + newline)

    def finish(self) -> None:
        """Print all that has arrived."""
        self._line += self._read()
        if self._prefix and self._line and not self._line.endswith("\n"):
            self._line += "\n"  # the next text belongs to another rank
        self._print(self._line)
        self._line = ""

    def _read(self) -> str:
        if self._pipe is None:
            return ""
        try:
            return self._decoder.decode(os.read(self._pipe[0], _PIPE_BYTES))
        except BlockingIOError:
            return ""

    def _print(self, text: str) -> None:
        if text and self._prefix:
            text = self._prefix + text[:-1].replace("\n", f"\n{self._prefix}") + "\n"
        if text:
            with suppress(AttributeError, OSError, ValueError):  # as above: the text has no reader
                stream = getattr(sys, self._name)
                stream.write(text)
                stream.flush()


class Collector:
    """The reports of one run, as they come in: rank -> the report and its payload."""

    def __init__(
        self,
        channels: Sequence[Channel],
        fork_server: Channel,
        pids: Sequence[int],
        arenas: Sequence[Arena],
        outputs: Sequence[RankOutput],
    ) -> None:
        self._channels, self._fork_server, self._pids, self._arenas = channels, fork_server, pids, arenas
        self._outputs = outputs
        self.reports: dict[int, tuple[Report, bytes]] = {}
        self.starting = set(range(len(channels)))
        """The ranks that have not begun the function."""
        self.idle: set[int] = set()
        """The ranks that have reported, and wait for the next task."""
        self._connected = set(range(len(channels)))
        self._selector = selectors.DefaultSelector()
        self._deadline: float | None = None
        self._timeout_s: float | None = None
        self._grace_s: float | None = None
        self._in_grace = False

    def wait(self, start_deadline: float, timeout_s: float | None, grace_s: float | None) -> None:
        """Collect until every rank has reported or time is up.

        Time is up at start_deadline if a rank has not begun the function by then. It is up timeout_s after the last
        rank has begun, and grace_s after the first failure, unless these are None.
        """
        self._deadline, self._timeout_s, self._grace_s = start_deadline, timeout_s, grace_s
        with self._selector:
            for rank, channel in enumerate(self._channels):
                self._watch(channel, partial(self._listen, rank))
            self._watch(self._fork_server, self._hear_of_deaths)
            for output in self._outputs:
                if output.pipe_end is not None:
                    self._watch(output.pipe_end, output.forward)
            try:
                while len(self.reports) < len(self._channels) and not self._late():
                    for key, _ in self._selector.select(remaining(self._deadline)):
                        key.data()
            finally:
                for output in self._outputs:
                    output.finish()

    def _watch(self, file: Channel | int, act: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, act)

    def _late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _listen(self, rank: int) -> None:
        try:
            while rank in self._connected and (message := self._channels[rank].poll()) is not None:
                if message.value == STARTED:
                    self._has_started(rank)
                else:
                    self.idle.add(rank)
                    self._add(message.value, message.payload)
        except EOFError:
            self._disconnect(rank)
            if not is_ending(self._pids[rank]):  # else the fork server will say how it has ended
                self._add_death(rank, "runs another program now, or has closed its descriptors")

    def _hear_of_deaths(self) -> None:
        try:
            while (message := self._fork_server.poll()) is not None:
                _, rank, status = message.value
                self._add_death(rank, ending_in_words(status))
        except EOFError:
            self._selector.unregister(self._fork_server)
            for rank in range(len(self._channels)):
                self._add_death(rank, "was killed together with the process that ranks are forked from")

    def _disconnect(self, rank: int) -> None:
        if rank in self._connected:
            self._selector.unregister(self._channels[rank])
            self._connected.remove(rank)

    def _add_death(self, rank: int, how: str) -> None:
        self._listen(rank)  # its report may still be in the channel
        self.idle.discard(rank)
        if rank in self.reports:
            return
        self._arenas[rank].board(rank).set_gone(DepartureKind.DIED, how)
        report = Report(rank, "died", how, f"process {self._pids[rank]} {how}\n", time.monotonic_ns())
        self._add(report, b"")

    def _add(self, report: Report, payload: bytes) -> None:
        self.reports[report.rank] = report, payload
        self._has_started(report.rank)
        if report.kind != "returned" and self._grace_s is not None and not self._in_grace:
            self._in_grace = True
            end = time.monotonic() + self._grace_s
            self._deadline = end if self._deadline is None else min(self._deadline, end)

    def _has_started(self, rank: int) -> None:
        if rank in self.starting:
            self.starting.remove(rank)
            if not self.starting and not self._in_grace:
                self._deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s


Reports = Mapping[int, tuple[Report, bytes]]


def results(reports: Reports, call: str, waited_s: float, timeout_s: float | None) -> list[Any]:
    """The results in rank order. Raises RankFailed if a rank failed, WaitTimeout if ranks only did not finish.

    call: the run in words.
    waited_s: how long it took with its start.
    timeout_s: how long the function itself had.
    """
    failed = [report for report, _ in reports.values() if report.kind in ("raised", "waited", "died")]
    starting, stuck = (
        {rank: report.text for rank, (report, _) in sorted(reports.items()) if report.kind == kind}
        for kind in ("starting", "stuck")
    )
    if failed:
        raise _blame(reports, failed, {**stuck, **starting})
    if starting:
        raise _too_late(f"the start of {call}", waited_s, starting)
    if stuck:
        raise _too_late(call, timeout_s or waited_s, stuck)
    return [_result(rank, reports[rank][1]) for rank in sorted(reports)]


def outcomes(reports: Reports, call: str, waited_s: float, timeout_s: float | None) -> list[Any]:
    """Each rank's result, or its RankFailed, in rank order. For the arguments see `results`."""
    return [_outcome(report, payload, call, waited_s, timeout_s) for _, (report, payload) in sorted(reports.items())]


def _outcome(report: Report, payload: bytes, call: str, waited_s: float, timeout_s: float | None) -> Any:
    if report.kind == "returned":
        try:
            return _result(report.rank, payload)
        except ArgumentError as error:
            return rank_failed(report.rank, str(error), {}, error)
    if report.kind in ("starting", "stuck"):
        what = (f"the start of {call}", waited_s) if report.kind == "starting" else (call, timeout_s or waited_s)
        late = _too_late(*what, {report.rank: report.text})
        return rank_failed(report.rank, _out_of_time(report.text), {}, late)
    return rank_failed(report.rank, report.text, {}, _exception(payload) or _nameless(report))


def _result(rank: int, payload: bytes) -> Any:
    try:
        return unpack(payload)
    except Exception as error:
        raise ArgumentError(f"the result of rank {rank} cannot be read in the parent: {error}") from error


def _blame(reports: Reports, failed: list[Report], stuck: Mapping[int, str]) -> RankFailed:
    # In order of time; but a rank that only waited for another is the first cause only if there is no other.
    first, *others = sorted(failed, key=lambda report: (report.kind == "waited", report.at_ns))
    waiting = {report.rank: report.text for report in others if report.kind == "waited"}
    for rank, stack in stuck.items():
        waiting[rank] = _out_of_time(stack)
    same = sorted(report.rank for report in others if report.kind != "waited" and report.how == first.how)
    text = first.text
    if same:
        text += f"(the same on {ranks_text(same)})\n"
    text += "".join(
        f"(and rank {report.rank} {report.how})\n"
        for report in sorted(others, key=lambda report: report.rank)
        if report.rank not in waiting and report.rank not in same
    )
    return rank_failed(first.rank, text, waiting, _cause(reports, first, waiting))


def _cause(reports: Reports, first: Report, waiting: Mapping[int, str]) -> BaseException:
    """The exception of the first failed rank; without one, the PeerGone of a rank that waited for it, or a stand-in."""
    if cause := _exception(reports[first.rank][1]):
        return cause
    for rank in waiting:
        seen = _exception(reports[rank][1])
        if isinstance(seen, PeerGone) and seen.world_rank == first.rank:
            return seen
    return _nameless(first)


def _nameless(report: Report) -> BaseException:
    """Stands for the exception of a rank that has sent none."""
    kind = ChildProcessError if report.kind == "died" else RuntimeError
    return kind(f"rank {report.rank} {report.how}")


def _out_of_time(stack: str) -> str:
    return f"it did not end in time and was killed; it was here:\n{stack}"


def _exception(payload: bytes) -> BaseException | None:
    try:
        return cast(BaseException, unpack(payload)) if payload else None
    except Exception:  # noqa: BLE001  its class may exist on the rank only; the traceback says the rest
        return None


def rank_failed(rank: int, traceback: str, waiting: Mapping[int, str], cause: BaseException | None) -> RankFailed:
    """A RankFailed with its cause. If the cause is one of our own errors, it is also an instance of the error's class.

    So `except MismatchError` around `run` catches what `except MismatchError` inside the function would.
    """
    plain = RankFailed(rank, traceback, waiting)
    plain.__cause__ = cause
    if not isinstance(cause, UnisonoError) or type(cause) is RankFailed:
        return plain
    kind = _both(type(cause))  # type: ignore[arg-type]  # a class is hashable
    layout: Any = kind.__base__  # its `__new__` is the right one; another base's, such as MemoryError's, refuses
    mixed: RankFailed = layout.__new__(kind, str(plain))
    mixed.args = plain.args
    vars(mixed).update(vars(cause))
    vars(mixed).update(vars(plain))
    mixed.__cause__ = cause
    return mixed


@cache
def _both(kind: type[UnisonoError]) -> type[RankFailed]:
    def __reduce__(self: RankFailed) -> tuple[Any, tuple[object, ...]]:  # noqa: N807
        return rank_failed, (self.rank, self.traceback, self.waiting, self.__cause__)

    bases = (kind,) if issubclass(kind, RankFailed) else (RankFailed, kind)
    return type("RankFailed", bases, {"__reduce__": __reduce__, "__module__": RankFailed.__module__})


def _too_late(call: str, waited_s: float, stuck: Mapping[int, str]) -> WaitTimeout:
    stacks = "".join(f"\nrank {rank} was here:\n{stack.rstrip()}" for rank, stack in stuck.items())
    return WaitTimeout(call, waited_s, list(stuck), details=stacks)
