"""The report of a trace: where time goes, and which ranks make others wait."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from .tracks import Track, by_group, by_number, time_inside_ns, waits_for_last

_LATE_NS = 20_000


class CallKind(NamedTuple):
    """All equal calls. Times are of the slowest rank, from when the last rank has entered.

    nbytes: the size of the vector.
    calls: the number of calls.
    typical_ns: the median time of a call.
    total_ns: the time of all calls.
    waited_ns: how long a rank waited for the last rank to enter, on average, in all calls together.
    """

    collective: str
    dtype: str
    nbytes: int
    algorithm: str
    group: str
    calls: int
    typical_ns: int
    total_ns: int
    waited_ns: int


class Latecomer(NamedTuple):
    """A rank that came last.

    calls: in how many calls others noticed it.
    waited_ns: how long all others together waited for it.
    line: the line of the user's code that cost most of this time.
    """

    rank: int
    calls: int
    waited_ns: int
    line: str


class RankTime(NamedTuple):
    """The time of one rank, from its first call to the end of its last.

    inside_ns: the time in calls.
    background_ns: the part of inside_ns in calls of another thread, while the program went on.
    """

    rank: int
    total_ns: int
    inside_ns: int
    background_ns: int


class TraceReport(NamedTuple):
    """The report of a trace. lost: the number of calls that the longest log has lost."""

    kinds: Sequence[CallKind]
    late: Sequence[Latecomer]
    times: Sequence[RankTime]
    lost: int


def report(tracks: Sequence[Track]) -> TraceReport:
    """Read a trace."""
    kinds: dict[tuple[str, str, int, str, str], list[tuple[int, int]]] = defaultdict(list)
    late: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for (_, _, name), some in by_group(track for track in tracks if track.calls).items():
        for calls in by_number(some).values():
            rank, waits = waits_for_last(calls)
            last, waited, what = calls[rank], sum(waits.values()), calls[rank].what
            if waited >= _LATE_NS and len(calls) == some[0].size:
                late[rank].append((waited, what.record.where if what else ""))
            if what is not None:
                took = max(call.left_ns for call in calls.values()) - last.entered_ns
                key = what.record.collective, what.record.dtype, some[0].nbytes(last), what.record.algorithm, name
                kinds[key].append((max(0, took), waited // len(calls)))
    found = []
    for kind, times in kinds.items():
        took_ns, waited_ns = zip(*times, strict=True)
        found.append(CallKind(*kind, len(times), int(median(took_ns)), sum(took_ns), sum(waited_ns)))
    found.sort(key=lambda kind: -kind.total_ns - kind.waited_ns)
    lost = max((track.calls[0].number - 1 for track in tracks if track.calls), default=0)
    return TraceReport(found, _late(late), list(_times(tracks)), lost)


def _late(late: Mapping[int, list[tuple[int, str]]]) -> list[Latecomer]:
    found = []
    for rank, times in late.items():
        lines = Counter[str]()
        for waited, line in times:
            lines[line] += waited
        found.append(Latecomer(rank, len(times), lines.total(), lines.most_common(1)[0][0]))
    return sorted(found, key=lambda one: -one.waited_ns)


def _times(tracks: Iterable[Track]) -> Iterator[RankTime]:
    by_rank: dict[int, list[Track]] = defaultdict(list)
    for track in tracks:
        if track.calls:
            by_rank[track.rank].append(track)
    for rank, mine in sorted(by_rank.items()):
        first = min(track.calls[0].entered_ns for track in mine)
        last = max(max(call.left_ns, call.entered_ns) for track in mine for call in track.calls)
        behind = [track._replace(calls=[call for call in track.calls if call.background]) for track in mine]
        yield RankTime(rank, last - first, time_inside_ns(mine, first, last), time_inside_ns(behind, first, last))
