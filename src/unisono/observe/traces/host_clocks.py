"""One clock for the recordings of several hosts, found in the calls themselves.

No rank leaves a call over several hosts before all ranks have entered it. So each call that two hosts made together
bounds the difference of their clocks from both sides, as an exchange of time stamps would. Between two calls, clocks
drift apart by a bounded rate. This needs no messages, and works for ranks that were killed. In the aligned times, no
rank leaves a call before another rank has entered it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .recorded import Recorded
from .tracks import RankCall, Track, by_number

_DRIFT = 200e-6
"""How much faster one clock may run than another."""
_TIMES = {"entered_ns", "left_ns", "began_ns", "ended_ns"}
"""The times of calls, rows and messages. 0: this has not happened yet."""


class HostClock(NamedTuple):
    """The clock of a host, compared with the first host's clock.

    ahead_ns: how far it was ahead when the recording began.
    error_ns: half of the widest bounds of this difference, at any call; None: there were no common calls, so the
    difference is taken from the hosts' calendar clocks.
    """

    host: int
    name: str
    ahead_ns: int
    error_ns: int | None


class _Bound(NamedTuple):
    """The least and the most to add to a host's time, at the time `at`."""

    at: int
    least: float
    most: float


class _Shift:
    """The nanoseconds to add to times of a host."""

    def __init__(self, bounds: Sequence[_Bound], calendar: int) -> None:
        self._calendar = calendar
        self._bounds = _narrowed(sorted(bounds))
        self._times = [bound.at for bound in self._bounds]

    @property
    def error_ns(self) -> int | None:
        """Half of the widest bounds at any call."""
        return max((abs(round(bound.most - bound.least)) + 1 >> 1 for bound in self._bounds), default=None)

    def at(self, time: int) -> int:
        """The nanoseconds to add to this time: the middle of its bounds."""
        if not self._bounds:
            return self._calendar
        after = bisect_right(self._times, time)
        near = self._bounds[max(0, after - 1) : after + 1]
        least = max(bound.least - _DRIFT * abs(time - bound.at) for bound in near)
        most = min(bound.most + _DRIFT * abs(time - bound.at) for bound in near)
        return round((least + most) / 2)


def _narrowed(bounds: Sequence[_Bound]) -> list[_Bound]:
    """The bounds, each narrowed by the bounds before and after it."""
    for step in (1, -1):
        found: list[_Bound] = []
        for bound in bounds[::step]:
            if found:
                last = found[-1]
                drift = _DRIFT * abs(bound.at - last.at)
                bound = _Bound(bound.at, max(bound.least, last.least - drift), min(bound.most, last.most + drift))  # noqa: PLW2901
            found.append(bound)
        bounds = found[::step]
    return list(bounds)


def aligned(parts: Sequence[Recorded]) -> tuple[list[Recorded], list[HostClock]]:
    """The recordings in the time of the first host, and the clocks of the other hosts."""
    hosts = {part.host: part for part in reversed(parts)}
    first, *others = sorted(hosts)
    clocks, shifts = [], {}
    for host in others:
        calendar = hosts[host].unix_ns - hosts[first].unix_ns
        shift = shifts[host] = _Shift(list(_bounds(parts, first, host)), calendar)
        begin = min((call.entered_ns for part in parts if part.host == host for call in _calls(part)), default=0)
        clocks.append(HostClock(host, hosts[host].host_name, -shift.at(begin), shift.error_ns))
    return [_shifted(part, shifts[part.host]) if part.host in shifts else part for part in parts], clocks


def _calls(part: Recorded) -> Iterator[RankCall]:
    return (call for track in part.tracks for call in track.calls)


def _bounds(parts: Sequence[Recorded], one: int, other: int) -> Iterator[_Bound]:
    """The bounds from each call that both hosts have made."""
    on = {part.rank: part.host for part in parts}
    groups: dict[object, list[Track]] = {}
    for part in parts:
        if part.host in (one, other):
            for track in part.tracks:
                groups.setdefault(track.key, []).append(track)
    for some in groups.values():
        calls = by_number(some)
        # The last call of a rank may have failed: then the rank left it before all ranks had entered.
        end = min(track.latest.number if track.latest else 0 for track in some)
        for number in filter(end.__gt__, sorted(calls)):
            sides: Mapping[int, list[RankCall]] = {one: [], other: []}
            for rank, call in calls[number].items():
                sides[on[rank]].append(call)
            if all(sides.values()) and _is_one(calls[number]):
                came = {host: max(call.entered_ns for call in mine) for host, mine in sides.items()}
                left = {host: min(call.left_ns for call in mine) for host, mine in sides.items()}
                yield _Bound(left[other], came[one] - left[other], left[one] - came[other])


def _is_one(calls: Mapping[int, RankCall]) -> bool:
    """Have all ranks made the same call, and left it?"""
    records = {call.what and call.what.record._replace(where="") for call in calls.values()}
    return len(records) == 1 and None not in records and all(call.left_ns for call in calls.values())


def _shifted(part: Recorded, shift: _Shift) -> Recorded:
    def moved(one: Any) -> Any:
        times = {name: getattr(one, name) for name in _TIMES & {*one._fields}}
        return one._replace(**{name: time and time + shift.at(time) for name, time in times.items()})

    tracks = [
        track._replace(
            calls=[*map(moved, track.calls)], rows={number: [*map(moved, rows)] for number, rows in track.rows.items()}
        )
        for track in part.tracks
    ]
    messages = [message._replace(said=moved(message.said)) for message in part.messages]
    return part._replace(tracks=tracks, messages=messages)
