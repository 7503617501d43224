"""Turn the reports of all ranks into one list of results, or one exception."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from ...base.errors import ArgumentError, PeerGone, RankFailed, UnisonoError, WaitTimeout
from ...base.units import ranks_text
from .launch_messages import Report, unpack

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
    if report.kind == "starting":
        late = _too_late(f"the start of {call}", waited_s, {report.rank: report.text})
        return rank_failed(report.rank, _out_of_time(report.text), {}, late)
    if report.kind == "stuck":
        late = _too_late(call, timeout_s or waited_s, {report.rank: report.text})
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
    """The first exception itself; if there is none, the best account of the failure."""
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
