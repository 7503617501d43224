"""The report of a trace: where time goes, and which ranks make others wait."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ...base.errors import UnisonoError
from ...schedule import count, lower_bounds
from ...schedule.algorithms import find
from .tracks import RankCall, Track, by_group, by_number, time_inside_ns, waits_for_last

_LATE_NS = 20_000
_MOST_RANKS = 64  # tables for up to this number of ranks are counted


class CallKind(NamedTuple):
    """All equal calls. Times are of the slowest rank, from when the last rank has entered.

    nbytes: the size of the vector.
    calls: the number of calls.
    typical_ns: the median time of a call.
    total_ns: the time of all calls.
    waited_ns: how long a rank waited for the last rank to enter, on average, in all calls together.
    sent, bound: what the busiest rank sends, and must send at least, as fractions of the vector; None if not known.
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
    sent: float | None
    bound: float | None


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
    groups = by_group(track for track in tracks if track.calls)
    kinds: dict[tuple[str, str, int, str, str], list[tuple[int, int]]] = {}
    sizes: dict[tuple[str, str], int] = {}
    late: dict[int, list[tuple[int, str]]] = {}
    for (_, _, name), some in groups.items():
        for calls in by_number(some).values():
            _one_call(name, some[0], calls, kinds, late)
        sizes.update({(name, key[0]): some[0].size for key in kinds if key[4] == name})
    lost = max((track.calls[0].number - 1 for track in tracks if track.calls), default=0)
    return TraceReport(_kinds(kinds, sizes), _late(late), list(_times(tracks)), lost)


def _one_call(
    name: str,
    track: Track,
    calls: Mapping[int, RankCall],
    kinds: dict[tuple[str, str, int, str, str], list[tuple[int, int]]],
    late: dict[int, list[tuple[int, str]]],
) -> None:
    rank, waits = waits_for_last(calls)
    last, waited = calls[rank], sum(waits.values())
    if waited >= _LATE_NS and len(calls) == track.size:
        late.setdefault(rank, []).append((waited, last.what.record.where if last.what else ""))
    if last.what is None:
        return
    took = max(call.left_ns for call in calls.values()) - last.entered_ns
    record = last.what.record
    key = record.collective, record.dtype, track.nbytes(last), record.algorithm, name
    kinds.setdefault(key, []).append((max(0, took), waited // len(calls)))


def _kinds(
    kinds: Mapping[tuple[str, str, int, str, str], list[tuple[int, int]]], sizes: Mapping[tuple[str, str], int]
) -> list[CallKind]:
    found = []
    for key, times in kinds.items():
        took, waited = zip(*times, strict=True)
        costs = _costs(key[0], key[3], sizes[key[4], key[0]])
        typical = int(statistics.median(took))
        found.append(CallKind(*key, len(times), typical, sum(took), sum(waited), *costs))
    return sorted(found, key=lambda kind: -kind.total_ns - kind.waited_ns)


def _costs(collective: str, algorithm: str, ranks: int) -> tuple[float | None, float | None]:
    """What the busiest rank sends, and must send at least, as fractions of the vector."""
    try:
        bound = lower_bounds(collective, ranks).sent
        table = find(collective, algorithm.partition(".")[2]).schedule(ranks) if ranks <= _MOST_RANKS else None
    except UnisonoError:  # a user's own algorithm, or one over several hosts
        return None, None
    return (None if table is None else count(table).most_sent), bound


def _late(late: Mapping[int, list[tuple[int, str]]]) -> list[Latecomer]:
    found = []
    for rank, times in late.items():
        lines = Counter[str]()
        for waited, line in times:
            lines[line] += waited
        found.append(Latecomer(rank, len(times), lines.total(), lines.most_common(1)[0][0]))
    return sorted(found, key=lambda one: -one.waited_ns)


def _times(tracks: Iterable[Track]) -> Iterator[RankTime]:
    by_rank: dict[int, list[Track]] = {}
    for track in tracks:
        if track.calls:
            by_rank.setdefault(track.rank, []).append(track)
    for rank, mine in sorted(by_rank.items()):
        first = min(track.calls[0].entered_ns for track in mine)
        last = max(max(call.left_ns, call.entered_ns) for track in mine for call in track.calls)
        behind = [track._replace(calls=[call for call in track.calls if call.background]) for track in mine]
        yield RankTime(rank, last - first, time_inside_ns(mine, first, last), time_inside_ns(behind, first, last))
