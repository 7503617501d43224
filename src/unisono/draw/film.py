"""What every slot holds before the first round and after every round: what the pictures show.

Unlike a proof, a film does not stop at a mistake: the picture of a wrong algorithm shows where it goes wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..schedule.contract import Slot, Value, contract
from ..schedule.moves import check_rows
from ..schedule.table import COPY, JOIN, N, Schedule, expand

__all__ = ["Film", "Frame", "Held", "Move", "film"]

Held = tuple[tuple[int, int], ...]
"""What a slot holds: sorted pairs (rank, chunk of that rank's input), each as often as it was combined in."""


@dataclass(frozen=True)
class Move:
    """One chunk on its way: by which row of the table, from which slot to which, how it lands, and what it carries."""

    row: int
    source: Slot
    target: Slot
    op: int
    carries: Held


@dataclass(frozen=True)
class Frame:
    """One round: all that moves, and what every slot holds after it."""

    moves: tuple[Move, ...]
    after: dict[Slot, Held]


@dataclass(frozen=True)
class Film:
    """A schedule, played.

    slots: the (buffer, chunk) pairs that occur on any rank, in order. full: how many contributions a finished slot
    has at most; 1 where nothing is combined. shifts: whether a chunk ever lands in, or must end in, a slot of
    another number, so that a slot's number does not say which chunk it holds.
    """

    schedule: Schedule
    before: dict[Slot, Held]
    frames: tuple[Frame, ...]
    must: dict[Slot, Held]
    slots: tuple[tuple[int, int], ...]
    full: int
    shifts: bool

    def ops(self) -> set[int]:
        """The ops that occur."""
        return {move.op for frame in self.frames for move in frame.moves}

    def states(self) -> list[dict[Slot, Held]]:
        """What all slots hold before the first round, after round 0, after round 1, ..."""
        return [self.before, *(frame.after for frame in self.frames)]


def film(schedule: Schedule) -> Film:
    """Play a schedule, from what its collective says is there before.

    Raises ArgumentError for an unknown collective, and AlgorithmError for a row with a number out of range.
    """
    check_rows(schedule)
    promise = contract(schedule)
    before = {slot: _held(value) for slot, value in promise.before.items()}
    must = {slot: _held(value) for slot, value in promise.after.items()}
    steps: list[list[tuple[int, Slot, Slot, int]]] = [[] for _ in range(schedule.rounds)]
    for row, columns in zip(
        np.repeat(np.arange(len(schedule.rows)), schedule.rows[:, N]), expand(schedule), strict=True
    ):
        number, src, dst, sbuf, schunk, dbuf, dchunk, _, op = columns.tolist()
        steps[number].append((int(row), (src, sbuf, schunk), (dst, dbuf, dchunk), op))
    frames, state = [], before
    for round_ in steps:
        played = tuple(Move(*step, state.get(step[1], ())) for step in round_)
        state = dict(state)
        for move in played:
            state[move.target] = _land(state.get(move.target, ()), move)
        frames.append(Frame(played, state))
    ends = {slot for frame in frames for move in frame.moves for slot in (move.source, move.target)}
    seen = {(buffer, chunk) for _, buffer, chunk in ends | before.keys() | must.keys()}
    shifts = any(chunk != held[0][1] for slots in (state, must) for (_, _, chunk), held in slots.items() if held)
    full = max((len(held) for held in must.values()), default=1)
    return Film(schedule, before, tuple(frames), must, tuple(sorted(seen)), full, shifts)


def _held(value: Value) -> Held:
    chunk, ranks = value
    return tuple((rank, chunk) for rank in range(ranks.bit_length()) if ranks >> rank & 1)


def _land(have: Held, move: Move) -> Held:
    if move.op == COPY:
        return move.carries
    both = have + move.carries
    return tuple(sorted(set(both) if move.op == JOIN else both))
