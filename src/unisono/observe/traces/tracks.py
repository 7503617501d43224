"""Tracks: the calls of one rank in one group, with times, wherever they were logged."""

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...engine.clock import Clock
from ...engine.logs.plan_registry import GroupNote, PlanNote
from ...engine.logs.rank_logs import CallLog
from ...engine.memory.arena import Arena, Layout
from ...engine.memory.board import PAGE
from ...schedule import BLOCKED


class RankCall(NamedTuple):
    """A call of one rank. Times are monotonic nanoseconds of the host; left_ns is 0 while the rank is in the call.

    what: None if it is no longer known.
    background: a background thread made the call.
    """

    number: int
    entered_ns: int
    left_ns: int
    what: PlanNote | None
    background: bool = False

    @property
    def text(self) -> str:
        """The call in words, such as `all_reduce(float32[2], sum)`."""
        return str(self.what.record) if self.what else "a call"


class Track(NamedTuple):
    """The calls of one rank in one group, oldest first.

    group, start: the name of the group, and where its memory begins, which tells groups apart.
    rank: the rank in the world.
    member: the rank in the group, which has `size` ranks.
    reached: the number of its latest call, and whether the rank is in it; read after the calls of all tracks.
    over: for a recorded group on one host, the number of its host's memory; for a group over several hosts, its own
    number, and `start` is 0.
    """

    group: str
    start: int
    rank: int
    member: int
    size: int
    calls: Sequence[RankCall]
    reached: tuple[int, bool] = (0, False)
    over: int = 0

    @property
    def key(self) -> tuple[int, int, str]:
        """A key that is equal for all tracks of one group."""
        return self.over, self.start, self.group

    def nbytes(self, call: RankCall) -> int:
        """The bytes of a call's vector: the tensor, or all blocks."""
        if call.what is None:
            return 0
        return call.what.nbytes * (self.size if call.what.record.collective in BLOCKED else 1)

    @property
    def latest(self) -> RankCall | None:
        """The call that the rank has entered last."""
        return self.calls[-1] if self.calls else None


def tracks(arena: Arena) -> list[Track]:
    """The last calls of all ranks in this memory, in all groups that they have now."""
    found = list(_tracks(arena))
    return [track._replace(reached=_reached(log)) for track, log in found]


def _reached(log: CallLog) -> tuple[int, bool]:
    calls = log.read()
    return (calls[-1].number, not calls[-1].left) if calls else (0, False)


def _tracks(arena: Arena) -> Iterator[tuple[Track, CallLog]]:
    for rank in range(arena.size):
        book, now = arena.plan_registry(rank), Clock.now()
        for note in book.groups():
            log = _log(arena, rank, note)
            if log is None:
                continue
            calls = calls_of(log, Clock(note.cycles, note.ns), now, book.plan)
            yield Track(note.name, note.start, rank, note.rank, note.size, calls), log


def calls_of(log: CallLog, then: Clock, now: Clock, what: Callable[[int], PlanNote | None]) -> list[RankCall]:
    """The calls in a log. then, now: two moments, which give the rate of its clock. what: finds a note."""
    said, ns_at = log.read(), then.ns_at
    notes = {note: what(note) for note in {call.note for call in said}}
    return [
        RankCall(number, ns_at(entered, now), left and ns_at(left, now), notes[note], background)
        for number, note, entered, left, background in said
    ]


def _log(arena: Arena, rank: int, note: GroupNote) -> CallLog | None:
    """A rank's log, at the place in its note; None if there is none."""
    if note.file:
        # The rank's process may see other files than this process. Once it has ended, its view is lost.
        for path in (f"/proc/{arena.board(rank).pid}/root{note.file}", note.file):
            with suppress(OSError, ValueError), Path(path).open("rb") as file:
                return CallLog(memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
        return None
    layout = Layout(note.size, arena.half, note.start)
    if not 0 <= note.rank < note.size or note.start % PAGE or layout.start + layout.head > arena.bytes:
        return None
    layout.map = arena.map
    return layout.log(note.rank)


def by_group(some: Iterable[Track]) -> dict[tuple[int, int, str], list[Track]]:
    found: dict[tuple[int, int, str], list[Track]] = {}
    for track in some:
        found.setdefault(track.key, []).append(track)
    return found


def by_number(some: Sequence[Track]) -> dict[int, dict[int, RankCall]]:
    """The calls of one group's tracks, by number, then by rank of the world."""
    found: dict[int, dict[int, RankCall]] = {}
    for track in some:
        for call in track.calls:
            found.setdefault(call.number, {})[track.rank] = call
    return found


def waits_for_last(calls: Mapping[int, RankCall]) -> tuple[int, dict[int, int]]:
    """The rank that entered a call last, and how many nanoseconds each rank has waited for it there.

    A rank logs a short call after it has written the word that lets the others go on. If it loses its processor in
    between, others leave the call before the time that it logs. Their wait ended when they left.
    """
    last, came = max(calls.items(), key=lambda item: item[1].entered_ns)
    ends = {rank: min(came.entered_ns, call.left_ns or came.entered_ns) for rank, call in calls.items()}
    return last, {rank: max(0, ends[rank] - call.entered_ns) for rank, call in calls.items()}


def time_inside_ns(some: Sequence[Track], since_ns: int, until_ns: int) -> int:
    """How long one rank was in calls in this time; calls within calls count once."""
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
