"""What a rank does inside a call: its segments, their rounds, and what it copies, combines and waits for in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from ...base.units import ranks_text
from ...engine.compile.program import ENTER, LEAVE
from .tracks import RankCall, RankRow, Track

WAITS = "reuse", "gate", "wait"
"""The kinds of rows in which a rank waits."""


class Stretch(NamedTuple):
    """A part of a call on one rank. Times are as in `RankCall`. waited_ns: how much of it the rank has waited.

    waited_for: for which ranks of the world, and how long for each, where that is one rank at a time. cut: the rank is
    still at it, and ended_ns only behind the beginning of its last row.
    """

    name: str
    began_ns: int
    ended_ns: int
    waited_ns: int
    waited_for: dict[int, int]
    cut: bool


def round_name(number: int) -> str:
    """How a round is called; those of the table as `unisono draw` calls them."""
    return {ENTER: "enter", LEAVE: "leave"}.get(number, f"round {number}")


def stretches(track: Track, call: RankCall) -> Iterator[Stretch]:
    """The segments of a call if there are several, the rounds of each, and what is done in each; the longer ones first
    where several begin together.
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
