"""The rounds of a table as runs of the buffers that files have: i (input), o (output) and s (scratch)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...base.errors import ArgumentError
from ..contract import BLOCKED, ONE_IN, ONE_OUT
from ..table import COPY, DBUF, ROUND, SBUF, Schedule, T, X, Y, singles, spread, unwrap


class Place(NamedTuple):
    """A run of chunks in a buffer of a gpu."""

    letter: str
    first: int
    many: int

    def slots(self) -> list[tuple[str, int]]:
        return [(self.letter, self.first + k) for k in range(self.many)]


At = tuple[int, Place]
"""A gpu and a run of its chunks."""


class Runs:
    """What a table moves, round by round, as `rounds` yields it. Scratch from `spare` on is free in each round.

    sizes: the number of chunks in i and in o.
    """

    def __init__(self, schedule: Schedule) -> None:
        if schedule.result == T:
            raise ArgumentError(f"{schedule.name}: its result is in scratch, which a file cannot say")
        self.table = spread(schedule)
        rows, C, kind, result = self.table.rows, schedule.chunks, schedule.collective, schedule.result
        self.block = C // schedule.ranks if kind in BLOCKED else C
        self.sizes = {"i": self.block if kind in ONE_IN else C, "o": self.block if kind in ONE_OUT else C}
        self._x = int(schedule.sizes(T)) if (rows[:, [SBUF, DBUF]] == T).any() else 0
        self._y = self._x + C * (result == Y and kind in ONE_IN)
        self.spare = self._y + C * (result == X or kind in ONE_OUT)

    def rounds(self) -> Iterator[list[tuple[At, list[At]]]]:
        """For each round what is written, with its inputs in rank order.

        An input that is the target itself is the content that it adds to.
        """
        whole = unwrap(self.table)
        for number in range(self.table.rounds):
            rows = whole[whole[:, ROUND] == number]
            yield self._grouped(rows.tolist()) or self._grouped(singles(rows).tolist()) or []

    def free(self) -> "Spare":
        """Free scratch for a round."""
        return Spare(self.spare)

    def _slot(self, rank: int, buffer: int, chunk: int) -> tuple[str, int]:
        """Where a file has a slot of the table."""
        kind, result, own = self.table.collective, self.table.result, chunk // self.block == rank
        if buffer == T:
            return "s", chunk
        if buffer == X and kind in ONE_IN:
            if result == X:
                return "o", chunk
            return ("i", chunk - rank * self.block) if own else ("s", self._x + chunk)
        if buffer == X:
            return "i", chunk
        if result == X or (kind in ONE_OUT and not own):
            return "s", self._y + chunk
        return "o", chunk - rank * self.block if kind in ONE_OUT else chunk

    def _place(self, rank: int, buffer: int, chunk: int, many: int) -> Place | None:
        """Where a file has a run; None if it is no run there."""
        slots = [self._slot(rank, buffer, chunk + k) for k in range(many)]
        place = Place(*slots[0], many)
        return place if slots == place.slots() else None

    def _grouped(self, rows: Sequence[list[int]]) -> list[tuple[At, list[At]]] | None:
        """The rows of a round by what they write; None if some are no runs in a file."""
        groups: dict[At, list[At]] = {}
        owner: dict[tuple[int, str, int], Place] = {}
        for _, src, dst, sbuf, schunk, dbuf, dchunk, many, op in rows:
            source, target = self._place(src, sbuf, schunk, many), self._place(dst, dbuf, dchunk, many)
            if source is None or target is None:
                return None
            if any(owner.setdefault((dst, *slot), target) != target for slot in target.slots()):
                return None
            inputs = groups.setdefault((dst, target), [] if op == COPY else [(dst, target)])
            inputs.append((src, source))
        for inputs in groups.values():
            inputs.sort(key=lambda one: one[0])
        return list(groups.items())


class Spare:
    """Scratch that nothing else uses in a round."""

    def __init__(self, first: int) -> None:
        self._next: dict[int, int] = defaultdict(lambda: first)

    def take(self, gpu: int, many: int) -> Place:
        first = self._next[gpu]
        self._next[gpu] += many
        return Place("s", first, many)
