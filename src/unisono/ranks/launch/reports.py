"""Turn the reports of all ranks into one list of results, or one exception."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

from ...base.errors import ArgumentError, PeerGone, RankFailed, UnisonoError, WaitTimeout
from ...base.units import ranks_text
from .launch_messages import Report, unpack


class RunTime(NamedTuple):
    """How long a run took.

    call: the run in words.
    waited_s: with its start.
    timeout_s: how long the function itself had; None: as long as it takes.
    """

    call: str
    waited_s: float
    timeout_s: float | None

    def too_late(self, reports: Sequence[Report]) -> WaitTimeout:
        """The error for ranks that did not finish, or for those of them that have not even started."""
        late = [report for report in reports if report.kind == "starting"]
        call, waited_s = (f"the start of {self.call}", self.waited_s) if late else (self.call, self.timeout_s)
        late = late or list(reports)
        stacks = "".join(f"\nrank {report.rank} was here:\n{report.text.rstrip()}" for report in late)
        return WaitTimeout(call, waited_s or self.waited_s, [report.rank for report in late], details=stacks)


def results(reports: Sequence[Report], time: RunTime) -> list[Any]:
    """The results in rank order. Raises RankFailed if a rank failed, WaitTimeout if ranks only did not finish."""
    late = [report for report in reports if report.kind in ("starting", "stuck")]
    # In order of time; but a rank that only waited for another is the first cause only if there is no other.
    failed = sorted(
        (report for report in reports if report.kind in ("raised", "waited", "died")),
        key=lambda report: (report.kind == "waited", report.at_ns),
    )
    if failed:
        raise _blame(failed, late)
    if late:
        raise time.too_late(late)
    return [_result(report) for report in reports]


def outcomes(reports: Sequence[Report], time: RunTime) -> list[Any]:
    """Each rank's result, or its RankFailed, in rank order."""
    return [_outcome(report, time) for report in reports]


def _outcome(report: Report, time: RunTime) -> Any:
    match report.kind:
        case "returned":
            try:
                return _result(report)
            except ArgumentError as error:
                return rank_failed(report.rank, str(error), {}, error)
        case "starting" | "stuck":
            return rank_failed(report.rank, _out_of_time(report), {}, time.too_late([report]))
    return rank_failed(report.rank, report.text, {}, _exception(report))


def _result(report: Report) -> Any:
    try:
        return unpack(report.payload)
    except Exception as error:
        raise ArgumentError(
            f"cannot read the result of rank {report.rank} in the parent: {error}. Return tensors and plain data."
        ) from error


def _blame(failed: Sequence[Report], late: Sequence[Report]) -> RankFailed:
    first, *others = failed
    waited = [report for report in others if report.kind == "waited"]
    others = sorted((report for report in others if report.kind != "waited"), key=lambda report: report.rank)
    text = first.text
    if same := [report.rank for report in others if report.how == first.how]:
        text += f"(the same on {ranks_text(same)})\n"
    text += "".join(f"(and rank {other.rank} {other.how})\n" for other in others if other.rank not in same)
    cause = _exception(first)
    if not first.payload:  # the PeerGone of a rank that waited for it says more
        seen = map(_exception, waited)
        cause = next((error for error in seen if isinstance(error, PeerGone) and error.world_rank == first.rank), cause)
    waiting = {report.rank: report.text for report in waited} | {report.rank: _out_of_time(report) for report in late}
    return rank_failed(first.rank, text, waiting, cause)


def _out_of_time(report: Report) -> str:
    return f"it did not end in time and was killed; it was here:\n{report.text}"


def _exception(report: Report) -> BaseException:
    """The exception of a rank, or a stand-in if it has sent none."""
    try:
        return cast(BaseException, unpack(report.payload))
    except Exception:  # noqa: BLE001  its class may exist on the rank only; the traceback says the rest
        kind = ChildProcessError if report.kind == "died" else RuntimeError
        return kind(f"rank {report.rank} {report.how}")


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
