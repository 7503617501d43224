"""What all ranks of a job do now: which compute, which wait in a call and for which ranks, and which are culprits.

A wait chain goes from a rank that waits to the rank that the others wait for in the end. Two snapshots, a moment apart,
show why a job does not go on, and what can be done (`diagnose`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...base.records import Wait
from ...base.units import format_seconds, plural, ranks_text
from ...engine.memory.arena import Arena
from ...engine.process.alive import number_here, start_ticks
from ..traces.tracks import Track, time_inside_ns, tracks
from .ask_stacks import ProcessStatus, process_status

_MOST_SHOWN = 8


class WaitChain(tuple[int, ...]):
    """Ranks of the world, each of which waits for the next.

    The last rank does not wait, or waits for any of several ranks. If it is in the chain twice, no rank can go on.
    """

    __slots__ = ()

    @property
    def is_circle(self) -> bool:
        """Do ranks of the chain wait for each other?"""
        return self[-1] in self[:-1]

    @property
    def end(self) -> frozenset[int]:
        """The ranks that the others wait for in the end: the last one, or the ranks of the circle."""
        return frozenset(self[self.index(self[-1]) :])

    def text(self, waits: Mapping[int, Wait]) -> str:
        """In words, such as `rank 0 waits in group 'a' for rank 1, which waits in group 'b' for rank 0`."""
        links = [f"waits in group {waits[one].group!r} for rank {other}" for one, other in pairwise(self)]
        stuck = ": none of them can go on" if self.is_circle else ""
        return f"rank {self[0]} {', which '.join(links)}{stuck}"


def wait_chain(waits: Mapping[int, Wait], rank: int) -> WaitChain:
    """The chain from this rank to the rank that it waits for, and so on."""
    ranks = [rank]
    while ranks[-1] in waits and ranks[-1] not in ranks[:-1]:
        needs = waits[ranks[-1]].needs
        if needs is None:
            break
        ranks.append(needs)
    return WaitChain(ranks)


class InCall(NamedTuple):
    """A call in which a rank is. missing: the ranks of the world that have not entered it."""

    group: str
    number: int
    call: str
    since_ns: int
    missing: tuple[int, ...]

    @property
    def place(self) -> str:
        """The place in the order of calls, such as `#7 of group 'world'`."""
        return f"#{self.number} of group {self.group!r}"


class RankSnapshot(NamedTuple):
    """What one rank does now.

    pid: 0 before the rank has joined.
    gone: how it has ended, as the end of a sentence; empty if it has not.
    calls: the number of its calls in all groups together.
    last_ns: when it left its latest call.
    inside: the call in which it is.
    far: it is on another host; `pid` is its process there, and its log is there.
    """

    rank: int
    pid: int
    status: ProcessStatus
    gone: str
    calls: int
    last_ns: int
    inside: InCall | None
    far: bool = False

    @property
    def does(self) -> str:
        """What the rank does, as the end of the sentence "rank 2 ..."."""
        if self.gone:
            return self.gone
        if not self.pid:
            return "has not joined yet"
        if self.far:
            return "is on another host"
        if self.status.state in ("T", "t"):
            where = f" in call {self.inside.place}" if self.inside else ""
            who = f" by a debugger (process {self.status.tracer})" if self.status.state == "t" else ""
            return f"is stopped{who}{where}"
        if self.inside:
            return f"is in call {self.inside.place}"
        return "computes" if self.status.state == "R" else "sleeps, or waits for something else"

    @property
    def since_ns(self) -> int:
        """Since when the rank does this, as far as its calls tell."""
        return self.inside.since_ns if self.inside else self.last_ns


class Culprit(NamedTuple):
    """Ranks for which others wait: one, or a circle of ranks that wait for each other.

    waiting: the ranks that wait because of them; the ranks of a circle are among these.
    since_ns: since when the first of these waits.
    text: the wait chain from one of the waiting ranks to the culprit, in words.
    """

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    since_ns: int
    text: str

    @property
    def is_circle(self) -> bool:
        """Do these ranks wait for each other?"""
        return self.ranks[0] in self.waiting and len(self.ranks) > 1


class Snapshot(NamedTuple):
    """One look at a job. waits: rank -> the call and the ranks that it waits for. culprits: the worst one first."""

    at_ns: int
    ranks: Sequence[RankSnapshot]
    tracks: Sequence[Track]
    waits: Mapping[int, Wait]
    culprits: Sequence[Culprit]


def snapshot(arena: Arena, patience_ns: int = 0) -> Snapshot:
    """Look at a job. patience_ns: how long a rank may wait before another one counts as a culprit."""
    found = tracks(arena)
    inside = _inside(found)
    now_ns = time.monotonic_ns()
    ranks = []
    for rank in range(arena.size):
        board = arena.board(rank)
        number, ticks = board.pid, board.ticks
        mine = [track for track in found if track.rank == rank]
        latest = [track.latest for track in mine if track.latest]
        far = bool(number) and not mine  # a rank of this host has had its log here since it joined
        pid = number if far else number_here(number, ticks)
        over = bool(pid) and not far and start_ticks(pid) != ticks
        gone = board.gone  # after that: a process that has ended has written how
        ended = str(gone) if gone else "has ended" if over else ""
        ranks.append(
            RankSnapshot(
                rank, pid, process_status(pid) if pid and not far else ProcessStatus(), ended,
                sum(call.number for call in latest), max((call.left_ns for call in latest), default=0),
                None if ended else inside.get(rank), far,
            )
        )  # fmt: skip
    waits, since = {}, {}
    for seen in ranks:
        wait = arena.board(seen.rank).wait
        if seen.gone or seen.far or seen.status.state in ("T", "t"):
            continue
        if seen.inside and seen.inside.missing:
            # The rank adds its line to what its board says, once it has waited for a moment.
            call = wait.call if wait and wait.group == seen.inside.group else f"{seen.inside.call} {seen.inside.place}"
            waits[seen.rank] = Wait(seen.inside.group, call, seen.inside.missing)
        elif wait and wait.missing:
            waits[seen.rank] = wait
        else:
            continue
        since[seen.rank] = seen.inside.since_ns if seen.inside else seen.last_ns or now_ns - patience_ns
    late = {rank for rank in waits if now_ns - since[rank] >= patience_ns}
    return Snapshot(now_ns, ranks, found, waits, _culprits(waits, since, late))


def _inside(found: Sequence[Track]) -> dict[int, InCall]:
    """Rank -> the call in which it is. Of several: the innermost that not all ranks have entered, or the innermost.

    A rank counts if it was in the call both before and after all logs were read. So all calls are of one moment.
    """
    inside: dict[int, InCall] = {}
    for track in sorted(found, key=lambda track: track.latest.entered_ns if track.latest else 0):
        call = track.latest
        if call is None or call.left_ns or track.reached != (call.number, True):
            continue
        missing = sorted(one.rank for one in found if one.start == track.start and one.reached[0] < call.number)
        known = inside.get(track.rank)
        if missing or known is None or not known.missing:
            inside[track.rank] = InCall(track.group, call.number, call.text, call.entered_ns, tuple(missing))
    return inside


def _culprits(waits: Mapping[int, Wait], since: Mapping[int, int], late: set[int]) -> list[Culprit]:
    ends: dict[frozenset[int], list[int]] = {}
    for rank in sorted(late):
        ends.setdefault(wait_chain(waits, rank).end, []).append(rank)
    found = []
    for ranks, waiting in ends.items():
        first = min(ranks) if len(ranks) > 1 else max(waiting, key=lambda rank: len(wait_chain(waits, rank)))
        since_ns = min(since[rank] for rank in waiting)
        found.append(Culprit(tuple(sorted(ranks)), tuple(waiting), since_ns, wait_chain(waits, first).text(waits)))
    return sorted(found, key=lambda culprit: (-len(culprit.waiting), culprit.since_ns))


class Rate(NamedTuple):
    """The calls of one rank between two looks. share: the part of the time in which it was in calls."""

    calls_per_s: float
    bytes_per_s: float
    share: float


def rates(before: Snapshot, after: Snapshot) -> list[Rate]:
    """The rates of all ranks. If a rank made more calls than its log keeps, the last ones stand for all."""
    earlier = {seen.rank: seen.calls for seen in before.ranks}
    passed_s = max(1, after.at_ns - before.at_ns) / 1e9
    found = []
    for seen in after.ranks:
        mine = [track for track in after.tracks if track.rank == seen.rank]
        # Of a log that lacks the first calls, nothing is known before its oldest call.
        cut = [track.calls[0].entered_ns for track in mine if track.calls and track.calls[0].number > 1]
        since_ns = max([before.at_ns, *cut])
        known_s = max(1, after.at_ns - since_ns) / 1e9
        moved = sum(track.nbytes(call) for track in mine for call in track.calls if call.left_ns >= since_ns)
        share = time_inside_ns(mine, since_ns, after.at_ns) / 1e9 / known_s
        calls = max(0, seen.calls - earlier.get(seen.rank, 0))
        found.append(Rate(calls / passed_s, moved / known_s, min(1.0, share)))
    return found


class Diagnosis(NamedTuple):
    """Why a job does not go on.

    lines: the text for the user.
    ranks: the ranks whose stacks to show, the culprits first.
    stuck: the groups in which ranks were in one call at both looks, by where their memory begins.
    """

    lines: Sequence[str]
    ranks: Sequence[int]
    stuck: Sequence[int]


def diagnose(before: Snapshot, after: Snapshot, line_of: Callable[[int], str] = lambda _rank: "") -> Diagnosis:
    """Compare two looks at a job, a moment apart. line_of: gives the line of the user's code at which a rank is."""
    same = [rank for rank in after.waits if _at(before.ranks[rank]) == _at(after.ranks[rank]) is not None]
    culprits = [one for one in after.culprits if set(one.waiting) & set(same)]
    if not culprits:
        busy = sum(one.calls - two.calls for one, two in zip(after.ranks, before.ranks, strict=True))
        lines = [f"no rank is stuck: the ranks have made {plural(busy, 'call')} between two looks"]
        return Diagnosis(lines, (), ())
    lines, ranks = [], []
    for culprit in culprits:
        lines += _about(culprit, after, line_of)
        ranks += [*culprit.ranks, *(rank for rank in culprit.waiting if rank not in culprit.ranks)]
    groups = {after.ranks[rank].inside.group for rank in same if after.ranks[rank].inside}  # type: ignore[union-attr]
    stuck = dict.fromkeys(
        track.start for track in after.tracks if track.rank in same and track.group in groups and track.reached[1]
    )
    return Diagnosis(lines, list(dict.fromkeys(ranks)), list(stuck))


def _at(seen: RankSnapshot) -> tuple[str, int] | None:
    return None if seen.inside is None else (seen.inside.group, seen.inside.number)


def headlines(culprit: Culprit, after: Snapshot, line_of: Callable[[int], str] = lambda _rank: "") -> list[str]:
    """A line for each rank of a culprit: what it does, and which ranks have waited for it. A circle is one line."""
    since = format_seconds((after.at_ns - culprit.since_ns) / 1e9)
    if culprit.is_circle:
        return [f"deadlock for {since}: {culprit.text}"]
    have = "has" if len(culprit.waiting) == 1 else "have"
    waiting = f"{ranks_text(culprit.waiting, _MOST_SHOWN)} {have} waited {since} for it"
    lines = {rank: line_of(rank) for rank in culprit.ranks}
    return [f"{_name(seen := after.ranks[k])} {seen.does}{at and f', at {at}'}: {waiting}" for k, at in lines.items()]


def _about(culprit: Culprit, after: Snapshot, line_of: Callable[[int], str]) -> list[str]:
    heads = headlines(culprit, after, line_of)
    if culprit.is_circle:
        made = [f"  {_wait(after, rank)}" for rank in culprit.ranks]
        return [*heads, *made, "  Let all ranks make these calls in one order."]
    direct = [rank for rank in culprit.waiting if set(after.waits[rank].missing) & set(culprit.ranks)]
    chain = [culprit.text] if len(direct) < len(culprit.waiting) else []
    advice = dict.fromkeys(_advice(after.ranks[rank]) for rank in culprit.ranks)
    return [*heads, *(f"  {line}" for line in [*advice, *(_wait(after, rank) for rank in direct[:1]), *chain])]


def _name(seen: RankSnapshot) -> str:
    return f"rank {seen.rank} (pid {seen.pid})" if seen.pid else f"rank {seen.rank}"


def _wait(after: Snapshot, rank: int) -> str:
    wait = after.waits[rank]
    return f"rank {rank} is in {wait.call} and waits for {ranks_text(wait.missing, _MOST_SHOWN)}"


def _advice(seen: RankSnapshot) -> str:
    if seen.gone:
        return "It will not come: the others learn that within a second, unless they are stopped themselves."
    if not seen.pid:
        return "Its process has not called unisono.init(): see what it does instead, and whether it runs at all."
    if seen.far:
        return f"Ask on its host: unisono doctor {seen.pid}"
    if seen.status.state == "T":
        return f"Let it go on with `kill -CONT {seen.pid}`."
    if seen.status.state == "t":
        return f"Process {seen.status.tracer} debugs it: let it go on there."
    return "Its stack, below, shows what it does instead."
