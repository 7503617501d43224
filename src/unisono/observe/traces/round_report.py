"""What a trace with rounds says: what ranks do inside calls, and in which round they wait, for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from .tracks import Track


class WaitedIn(NamedTuple):
    """How long ranks have waited for one, together, in a round of all calls that are alike."""

    round: int
    rank: int
    waited_ns: int


class RoundKind(NamedTuple):
    """All calls that are alike. Times are of all ranks together; what is in none of the four, Python has taken.

    entering_ns: until all had entered, and memory of earlier calls was free. worst: where ranks have waited most; None
    where they have waited for nobody after the gate.
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
    """Read a trace: the kinds of calls of which rounds are there, those first that have taken most time."""
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
