"""The parts of a call on one rank: its segments, their rounds, and the copies, combinations and waits in each."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from ...base.units import ranks_text
from ...engine.compile.program import ENTER, LEAVE
from .tracks import RankCall, RankRow, Track

WAITS = "reuse", "gate", "wait"
"""The kinds of rows in which a rank waits."""


class Stretch(NamedTuple):
    """A part of a call on one rank. Times are as in `RankCall`.

    waited_ns: how long the rank waited in it.
    waited_for: rank of the world -> how long the rank waited for it, in waits for a single rank.
    cut: the rank is still in this part; ended_ns is just after its last row began.
    """

    name: str
    began_ns: int
    ended_ns: int
    waited_ns: int
    waited_for: dict[int, int]
    cut: bool


def round_name(number: int) -> str:
    """The name of a round; rounds of the table have the names of `unisono draw`."""
    return {ENTER: "enter", LEAVE: "leave"}.get(number, f"round {number}")


def stretches(track: Track, call: RankCall) -> Iterator[Stretch]:
    """The segments of a call if there are several, their rounds, and the rows of each round. Of stretches that begin
    together, the longer one comes first.
    """
    rows = track.rows.get(call.number, ())
    segments = [list(some) for _, some in groupby(rows, key=lambda row: row.segment)]
    for segment in segments:
        if len(segments) > 1:
            yield _stretch(f"segment {segment[0].segment}", track, segment)
        for number, some in groupby(segment, key=lambda row: row.round):
            inside = list(some)
            yield _stretch(round_name(number), track, inside)
            for row in inside:
                yield _stretch(_words(track, call, row), track, [row])


def _stretch(name: str, track: Track, rows: Sequence[RankRow]) -> Stretch:
    waited: dict[int, int] = {}
    for row in rows:
        if row.kind == "wait" and row.what is not None:
            rank = track.members[row.what.sources[0]]
            waited[rank] = waited.get(rank, 0) + row.took_ns
    total = sum(row.took_ns for row in rows if row.kind in WAITS)
    end = max(row.ended_ns or row.began_ns + 1 for row in rows)
    return Stretch(name, rows[0].began_ns, end, total, waited, cut=not rows[-1].ended_ns)


def _words(track: Track, call: RankCall, row: RankRow) -> str:
    if row.what is None:
        return "wait for memory that is in use"
    sources, targets = (
        sorted({track.members[member] for member in some} - {track.rank})
        for some in (row.what.sources, row.what.targets)
    )
    if row.kind == "wait":
        return f"wait for {ranks_text(sources)}"
    if row.kind == "gate":
        return "wait for all to enter"
    if row.kind == "post" or not track.nbytes(call):
        return "tell that it is done"
    peers = [f"{word} {ranks_text(some)}" for word, some in (("from", sources), ("to", targets)) if some]
    return " ".join([row.kind, *peers])


class WaitedIn(NamedTuple):
    """How long all ranks together waited for one rank, in one round of all equal calls."""

    round: int
    rank: int
    waited_ns: int


class RoundKind(NamedTuple):
    """All equal calls. Times are of all ranks together; the rest of `total_ns` is Python's.

    entering_ns: until all ranks had entered, and the memory of earlier calls was free.
    worst: where ranks waited longest; None if no rank waited after the gate.
    """

    collective: str
    nbytes: int
    algorithm: str
    group: str
    total_ns: int
    entering_ns: int
    waiting_ns: int
    copying_ns: int
    combining_ns: int
    worst: WaitedIn | None


def round_report(tracks: Iterable[Track]) -> list[RoundKind]:
    """Read a trace: all kinds of calls with traced rounds. The kind that took most time comes first."""
    times: dict[tuple[str, int, str, str], Counter[str]] = {}
    waits: dict[tuple[str, int, str, str], Counter[tuple[int, int]]] = {}
    for track in tracks:
        for call in track.calls:
            rows = track.rows.get(call.number)
            if not rows or call.what is None or not call.left_ns:
                continue
            record = call.what.record
            key = record.collective, track.nbytes(call), record.algorithm, track.group
            spent, waited = times.setdefault(key, Counter()), waits.setdefault(key, Counter())
            spent["call"] += call.left_ns - call.entered_ns
            for row in rows:
                spent[row.kind] += row.took_ns
                if row.kind == "wait" and row.what is not None:
                    waited[row.round, track.members[row.what.sources[0]]] += row.took_ns
    found = []
    for key, spent in times.items():
        worst = [WaitedIn(*where, ns) for where, ns in waits[key].most_common(1)]
        kinds = spent["reuse"] + spent["gate"], spent["wait"], spent["copy"], spent["combine"]
        found.append(RoundKind(*key, spent["call"], *kinds, worst[0] if worst else None))
    return sorted(found, key=lambda kind: -kind.total_ns)
