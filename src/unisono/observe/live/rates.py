"""How fast a rank goes: calls and bytes per second, and the share of its time that it spends in calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..traces.tracks import Track
from .snapshot import Snapshot


class Rate(NamedTuple):
    """Of one rank, between two looks."""

    calls_per_s: float
    bytes_per_s: float
    share: float


def rates(before: Snapshot, after: Snapshot) -> list[Rate]:
    """The rates of all ranks. Where there were more calls than a log keeps, its last ones stand for all."""
    earlier = {seen.rank: seen.calls for seen in before.ranks}
    passed_s = max(1, after.at_ns - before.at_ns) / 1e9
    found = []
    for seen in after.ranks:
        mine = [track for track in after.tracks if track.rank == seen.rank]
        since_ns = max([before.at_ns, *(_known_since(track) for track in mine)])
        known_s = max(1, after.at_ns - since_ns) / 1e9
        moved = sum(track.nbytes(call) for track in mine for call in track.calls if call.left_ns >= since_ns)
        share = time_inside_ns(mine, since_ns, after.at_ns) / 1e9 / known_s
        calls = max(0, seen.calls - earlier.get(seen.rank, 0))
        found.append(Rate(calls / passed_s, moved / known_s, min(1.0, share)))
    return found


def _known_since(track: Track) -> int:
    """When the first call was entered that the log still has; 0 where it has all."""
    return track.calls[0].entered_ns if track.calls and track.calls[0].number > 1 else 0


def time_inside_ns(some: Sequence[Track], since_ns: int, until_ns: int) -> int:
    """How long one rank was in calls, in this time; calls within calls count once."""
    spans = sorted(
        (max(since_ns, call.entered_ns), min(until_ns, call.left_ns or until_ns))
        for track in some
        for call in track.calls
    )
    inside, end = 0, since_ns
    for first, last in spans:
        inside += max(0, last - max(first, end))
        end = max(end, last)
    return inside
