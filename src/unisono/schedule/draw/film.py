"""Compute the content of every slot before the first round and after each round, for all drawings.

Unlike a proof, a film does not stop at an error, so the drawing of a wrong table shows where it goes wrong.
"""

from dataclasses import dataclass
from functools import cache
from itertools import takewhile

import numpy as np

from ...base.errors import ArgumentError
from ...base.units import plural
from ..contract import Fault, Slot, Value, contract
from ..moves import transits
from ..proof import find_fault
from ..table import COPY, DBUF, DCHUNK, JOIN, SBUF, SCHUNK, Schedule, T, expand, spread

Held = tuple[tuple[int, int], ...]
"""The content of a slot: sorted pairs (rank, chunk of the rank's input), each as often as it was combined."""


@dataclass(frozen=True)
class Motion:
    """The transfer of one chunk. op: COPY, ADD or JOIN. carries: the content of the source."""

    source: Slot
    target: Slot
    op: int
    carries: Held


@dataclass(frozen=True)
class Frame:
    """One round: its transfers, and the content of every slot after it."""

    moves: tuple[Motion, ...]
    after: dict[Slot, Held]


@dataclass(frozen=True)
class Film:
    """The rounds of a schedule with the contents of all slots.

    frames: the rounds, all or the first.
    must: what the slots of the result must hold at the end.
    slots: the (buffer, chunk) pairs that occur on any rank, in order.
    full: the most contributions in a slot of the result; 1 if nothing is combined.
    shifts: can a chunk be in a slot of another number?
    fault: the table's fault, if it has one.
    """

    schedule: Schedule
    before: dict[Slot, Held]
    frames: tuple[Frame, ...]
    must: dict[Slot, Held]
    slots: tuple[tuple[int, int], ...]
    full: int
    shifts: bool
    fault: Fault | None

    def far(self, move: Motion) -> bool:
        """Does the transfer go from host to host?"""
        hosts = self.schedule.spanned
        return hosts is not None and hosts.host_of(move.source[0]) != hosts.host_of(move.target[0])

    def ops(self) -> set[int]:
        return {move.op for frame in self.frames for move in frame.moves}

    def states(self) -> list[dict[Slot, Held]]:
        """The contents of all slots before the first round, after round 0, after round 1, ..."""
        return [self.before, *(frame.after for frame in self.frames)]

    def wrong(self, number: int) -> set[Slot]:
        """The slots with wrong content in state `number`.

        These are the fault's slot, after its round; slots in which a contribution was combined twice; and at the end
        the slots of the result that do not hold what they must.
        """
        if self.fault is None:
            return set()
        state = self.states()[number]
        found = {slot for slot, held in state.items() if len(set(held)) < len(held)}
        if self.fault and self.fault.slot and self.fault.round == number - 1:
            found.add(self.fault.slot)
        if number == self.schedule.rounds:
            found |= {slot for slot, held in self.must.items() if state.get(slot) != held}
        return found


def slots_of_all(schedule: Schedule) -> int:
    """How many slots all ranks have together, at most: a film keeps the content of each, round by round."""
    rows = schedule.rows
    buffers = 1 + int(rows[:, [SBUF, DBUF]].max()) if len(rows) else 1
    return schedule.ranks * (schedule.chunks * min(buffers, T + 1) + max(0, schedule.scratch - schedule.chunks))


def check_size(schedule: Schedule, most: int, what: str, rounds: int | None = None) -> None:
    """Raise ArgumentError if a drawing of a schedule, or of its first `rounds`, has more than `most` boxes.

    A box is a slot of a rank, before or after a round. Called before the film is made, which may take minutes and all
    memory. what: "too long for a text".
    """
    length = schedule.rounds if rounds is None else min(rounds, schedule.rounds)
    boxes = (length + 1) * slots_of_all(schedule)
    if boxes > most:
        raise ArgumentError(
            f"{schedule.name}: {boxes:,} boxes ({plural(schedule.ranks, 'rank')}, {plural(schedule.chunks, 'chunk')}, "
            f"{plural(length, 'round')}) are {what}. Draw fewer ranks or chunks, or use unisono explain, which takes "
            "more."
        )


def film(schedule: Schedule, rounds: int | None = None) -> Film:
    """Play a schedule, or its first `rounds`, from the initial contents of its collective.

    Raises ArgumentError for an unknown collective, AlgorithmError for a row with a number out of range.
    """
    schedule = spread(schedule)
    length = schedule.rounds if rounds is None else min(rounds, schedule.rounds)
    steps = dict(takewhile(lambda round_: round_[0] < length, transits(schedule)))
    promise = contract(schedule)
    held = cache(_held)  # many slots must hold the same
    before = {slot: held(value) for slot, value in promise.before.items()}
    must = {slot: held(value) for slot, value in promise.after.items()}
    table = expand(schedule)
    frames, state = [], before
    for number in range(length):
        played = tuple(Motion(*step, state.get(step[0], ())) for step in steps.get(number, ()))
        state = dict(state)
        for move in played:
            state[move.target] = _land(state.get(move.target, ()), move)
        frames.append(Frame(played, state))
    seen = {(buffer, chunk) for _, buffer, chunk in before.keys() | must.keys()}
    for columns in ([SBUF, SCHUNK], [DBUF, DCHUNK]):
        seen |= {(buffer, chunk) for buffer, chunk in np.unique(table[:, columns], axis=0).tolist()}
    moved = bool((table[:, SCHUNK] != table[:, DCHUNK]).any())
    shifts = moved or any(chunk != held[0][1] for (_, _, chunk), held in must.items())
    full = max((len(held) for held in must.values()), default=1)
    return Film(schedule, before, tuple(frames), must, tuple(sorted(seen)), full, shifts, find_fault(schedule))


def _held(value: Value) -> Held:
    chunk, ranks = value
    return tuple((rank, chunk) for rank in range(ranks.bit_length()) if ranks >> rank & 1)


def _land(have: Held, move: Motion) -> Held:
    if move.op == COPY:
        return move.carries
    both = have + move.carries
    return tuple(sorted(set(both) if move.op == JOIN else both))
