"""The meaning of a table: in each round, which slots are written, and from which slots.

All adds into one slot in one round are one combination of several inputs, in rank order. The slot's own content is one
of these inputs, at its rank's place. So the order of rows and the size of a message do not change a sum.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from .contract import Slot, fault, slot_text
from .table import ADD, COPY, DBUF, DCHUNK, DST, JOIN, OP, ROUND, SBUF, SCHUNK, SRC, N, Rows, Schedule, expand

_BUFFERS = 3


class Move(NamedTuple):
    """A write to one slot: a copy of one source, or the combination of several sources in rank order."""

    slot: Slot
    sources: list[Slot]


Transit = tuple[Slot, Slot, int]
"""The transfer of one chunk: from where, to where, and COPY, ADD or JOIN."""


def transits(schedule: Schedule, chunks: Sequence[int] | None = None) -> Iterator[tuple[int, Iterator[Transit]]]:
    """The rounds of a table, each with its transfers of one chunk, in row order.

    chunks: only the transfers of these; see `expand`.

    Raises AlgorithmError for a number out of range.
    """
    check_rows(schedule)
    rows = expand(schedule, chunks)
    cuts = np.flatnonzero(np.diff(rows[:, ROUND], prepend=-1, append=-1)).tolist()
    return ((int(rows[start, ROUND]), _of_round(rows[start:stop])) for start, stop in pairwise(cuts))


def _of_round(rows: Rows) -> Iterator[Transit]:
    for _, src, dst, sbuf, schunk, dbuf, dchunk, _, op in rows.tolist():
        yield (src, sbuf, schunk), (dst, dbuf, dchunk), op


def moves(schedule: Schedule, chunks: Sequence[int] | None = None) -> Iterator[tuple[int, list[Move]]]:
    """The rounds of a table, each with its moves. All moves of a round read before any of them writes.

    Args:
        chunks: Only the moves of these chunks; see `expand`.

    Raises:
        AlgorithmError: A number is out of range, or a slot is written twice in a round.
    """
    return ((number, _combined(schedule, number, round_)) for number, round_ in transits(schedule, chunks))


def _combined(schedule: Schedule, number: int, round_: Iterator[Transit]) -> list[Move]:
    written: dict[Slot, list[Slot]] = {}
    for source, slot, op in round_:
        if op != COPY:
            written.setdefault(slot, [slot]).append(source)
        elif slot in written:
            raise fault(schedule, f"{slot_text(slot)} is written twice", number=number, slot=slot)
        else:
            written[slot] = [source]
    for sources in written.values():
        if len(sources) > 1:
            sources.sort(key=itemgetter(0))
    return [Move(*item) for item in written.items()]


def check_rows(schedule: Schedule) -> None:
    """Raise AlgorithmError for the first row with a number out of range, or with an op that its collective cannot have.

    A barrier must JOIN, because a rank may learn twice that another has entered. All other collectives must ADD,
    because each contribution counts once.
    """
    rows, p, C = schedule.rows, schedule.ranks, schedule.chunks
    chunk_sizes = schedule.sizes(rows[:, [SBUF, DBUF]])
    combine = JOIN if schedule.collective == "barrier" else ADD
    if not (0 <= schedule.root < p and 0 <= schedule.result < _BUFFERS):
        raise fault(schedule, f"got root {schedule.root} and result {schedule.result}, expected a rank and a buffer")
    if not len(rows):
        return
    faults = {
        "its round comes before the round of the row above": np.diff(rows[:, ROUND], prepend=0) < 0,
        f"there are only the ranks 0 to {p - 1}": _outside(rows[:, [SRC, DST]], p),
        "there are only the buffers X, Y and T": _outside(rows[:, [SBUF, DBUF]], _BUFFERS),
        f"there are only the chunks 0 to {C - 1}": _outside(rows[:, [SCHUNK, DCHUNK]], chunk_sizes),
        f"a run has from 1 to {C} chunks": _outside(rows[:, [N]] - 1, C),
        f"{schedule.collective} only copies and {'joins' if combine == JOIN else 'adds'}": (
            (rows[:, OP] != COPY) & (rows[:, OP] != combine)
        ),
    }
    bad = np.stack(list(faults.values()))
    if bad.any():
        row = int(bad.any(axis=0).argmax())
        rule = list(faults)[int(bad[:, row].argmax())]
        number, src, dst, _, schunk, _, dchunk, *_ = rows[row].tolist()
        said = f"rank {src} sends chunk {schunk} to rank {dst} as chunk {dchunk}, but {rule} (row {row})"
        raise fault(schedule, said, number=number)


def _outside(columns: np.ndarray, size: int | np.ndarray) -> np.ndarray:
    return np.asarray(((columns < 0) | (columns >= size)).any(axis=1))
