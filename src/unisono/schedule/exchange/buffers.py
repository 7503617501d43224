"""The buffers of files: i (input), o (output) and s (scratch), and the slots of a table that they are."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import AlgorithmError, ArgumentError
from ..contract import BLOCKED, HOLDERS, ONE_IN, ONE_OUT, Slot
from ..moves import check_rows, moves
from ..proof import prove
from ..table import ADD, DBUF, JOIN, SBUF, Schedule, T, X, Y, spread
from .order import make_table
from .steps import MOST_CHUNKS, Part, Step

COLLECTIVES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all", "scan": "scan", "exscan": "exscan",
    "barrier": "barrier",
} | {name: name for name in HOLDERS if "_" not in name}  # fmt: skip
"""The names of collectives in files, and ours."""

Place = tuple[str, int]
"""A chunk of a buffer of a gpu."""
At = tuple[int, Place]
"""A gpu and a chunk, or the first one of a run."""


class Run(NamedTuple):
    """A run of chunks that is written in a round: a copy of the only source, or the sum of all, which are in order."""

    gpu: int
    target: Place
    sources: list[At]
    many: int


class Buffers(NamedTuple):
    """Which slots of a table the buffers of its gpus are. result: X if i and o are one memory, else Y."""

    collective: str
    ranks: int
    chunks: int
    result: int

    @property
    def add(self) -> int:
        """What it is to combine."""
        return JOIN if self.collective == "barrier" else ADD

    @property
    def block(self) -> int:
        """The number of chunks of a block, or of the vector if the collective has no blocks."""
        return self.chunks // self.ranks if self.collective in BLOCKED else self.chunks

    def check(self, part: Part) -> None:
        """Raise ArgumentError for chunks that are not blocks, and for more than memory should be asked for."""
        if not self.chunks or (self.collective in BLOCKED and self.chunks % self.ranks):
            raise part.wrong(f"got {self.chunks} chunks, expected a multiple of {self.ranks}, the number of gpus")
        if self.ranks * self.chunks > MOST_CHUNKS:
            raise part.wrong(
                f"got {self.ranks} gpus with {self.chunks} chunks each, expected at most {MOST_CHUNKS:,} chunks in all"
            )

    def size(self, letter: str) -> int:
        """The number of chunks of i or o."""
        return self.block if self.collective in (ONE_IN if letter == "i" else ONE_OUT) else self.chunks

    def slots(self, part: Part, at: At, many: int, sizes: dict[str, int]) -> list[Slot]:
        """The slots of a run in a file. sizes: the numbers of chunks that the file gives the gpu."""
        gpu, (letter, first) = at
        size = sizes[letter] if letter == "s" else min(sizes[letter], self.size(letter))
        if not 0 < many <= size - first:
            raise part.wrong(f"it uses {many} chunks from {first} on in buffer {letter} of gpu {gpu}, which has {size}")
        if letter != "s" and self.collective in (ONE_IN if letter == "i" else ONE_OUT):
            first += gpu * self.block
        buffer = {"i": X, "o": self.result, "s": T}[letter]
        return [(gpu, buffer, first + k) for k in range(many)]

    def table(self, steps: Sequence[Step], name: str, path: str, scratch: int, root: int) -> Schedule:
        """The table of steps, proved."""
        rows = np.zeros((0, 9), np.int64)
        empty = Schedule(self.ranks, self.chunks, rows, self.collective, name, root, self.result, scratch=scratch)
        return make_table(steps, empty, path)

    def runs(self, schedule: Schedule) -> tuple[list[list[Run]], int]:
        """What a table moves, round by round, and how many chunks of s it uses."""
        if schedule.result == T:
            raise ArgumentError(f"{schedule.name}: its result is in scratch, which these files do not support")
        table, x = spread(schedule), 0
        if (table.rows[:, [SBUF, DBUF]] == T).any():
            x = int(schedule.sizes(T))
        one_in, one_out = self.collective in ONE_IN, self.collective in ONE_OUT
        # For each buffer: its name in the file, is only the own block there, and the first chunk of s for the rest.
        homes = {
            X: ("o" if one_in and self.result == X else "i", one_in and self.result == Y, x),
            Y: ("o" if self.result == Y else "", one_out, x + schedule.chunks * (one_in and self.result == Y)),
            T: ("s", False, 0),
        }

        def named(slot: Slot) -> At:
            rank, buffer, chunk = slot
            letter, one, spill = homes[buffer]
            if letter and (not one or chunk // self.block == rank):
                return rank, (letter, chunk - rank * self.block * one)
            return rank, ("s", spill + chunk)

        rounds, used = [], 0
        for _, written in moves(table):
            runs: list[Run] = []
            for slot, sources in sorted(written):
                ats = [named(slot), *map(named, sources)]
                used = max(used, *(1 + first for _, (letter, first) in ats if letter == "s"), 0)
                last = runs[-1] if runs else Run(-1, ("", 0), [], 0)
                if [on(at, last.many) for at in ((last.gpu, last.target), *last.sources)] == ats:
                    runs[-1] = last._replace(many=last.many + 1)
                else:
                    runs.append(Run(*ats[0], ats[1:], 1))
            rounds.append(runs)
        return rounds, used


def on(at: At, many: int) -> At:
    """The place some chunks after another one."""
    gpu, (letter, first) = at
    return gpu, (letter, first + many)


def shape_of(schedule: Schedule) -> tuple[Buffers, str]:
    """The buffers of a table in a file, and the name of its collective there."""
    name = next(theirs for theirs, ours in COLLECTIVES.items() if ours == schedule.collective)
    return Buffers(schedule.collective, schedule.ranks, schedule.chunks, schedule.result), name


def note_of(schedule: Schedule) -> str:
    """A table as text, for files whose steps alone are read in other rounds."""
    rows = [[schedule.scratch, schedule.result, schedule.root], *spread(schedule).rows.tolist()]
    return json.dumps(rows).replace("], ", "],\n")


def noted(note: Any, shape: Buffers, name: str, is_same: Callable[[Schedule], bool]) -> Schedule | None:
    """The table that `note_of` wrote. None for other notes, and if the steps of the file are not those of the table."""
    try:
        (scratch, result, root), *rows = json.loads(note)
        columns = np.array(rows, np.int64).reshape(-1, 9)
        table = Schedule(shape.ranks, shape.chunks, columns, shape.collective, name, root, result, scratch=scratch)
        check_rows(table)
        if not is_same(table):
            return None
    except (TypeError, ValueError, OverflowError, RecursionError, AlgorithmError):
        return None
    prove(table)
    return table
