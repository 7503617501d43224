"""Make tables of other tables: in sequence, in parallel, transposed, on some ranks, in segments."""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from ..base.errors import ArgumentError
from .contract import BLOCKED, DUALS, REDUCING, contract
from .table import (
    ADD,
    COPY,
    DBUF,
    DCHUNK,
    DST,
    OP,
    ROUND,
    SBUF,
    SCHUNK,
    SRC,
    Line,
    N,
    Rows,
    Schedule,
    T,
    Transfer,
    X,
    Y,
    expand,
    send,
    singles,
    spread,
    trace,
    unwrap,
)

Cells = Sequence[Sequence[int]] | Rows
"""For each chunk of a table, the chunks of a larger buffer that it becomes."""


def seq(*parts: Schedule) -> Schedule:
    """Run tables one after another. The result has the first part's collective and root and the last part's result."""
    _same_shape("seq", parts)
    starts = np.cumsum([0, *(part.rounds for part in parts)])
    rows = np.concatenate([_later(part.rows, int(start)) for part, start in zip(parts, starts, strict=False)])
    name, yields = " ; ".join(part.name for part in parts), tuple(chain.from_iterable(map(_yields, parts)))
    return parts[0].replace(rows=rows, name=name, result=parts[-1].result, yields=yields)


def par(*parts: Schedule) -> Schedule:
    """Run tables at the same time: round k of all parts is one round. Parts write different slots."""
    _same_shape("par", parts)
    name = " | ".join(part.name for part in parts)
    return parts[0].replace(rows=by_round([part.rows for part in parts]), name=name, yields=())


def transpose(schedule: Schedule) -> Schedule:
    """Reverse rounds and arrows: the algorithm of the dual collective, which adds what was copied.

    Duals are broadcast and reduce, all_gather and reduce_scatter, scatter and gather (both copy), and all_to_all and
    itself. Raises ArgumentError for other collectives.
    """
    if schedule.collective not in DUALS:
        raise ArgumentError(
            f"{schedule.name}: {schedule.collective} has no dual. Use a table of {', '.join(sorted(DUALS))}."
        )
    collective = DUALS[schedule.collective]
    rows = schedule.rows[::-1].copy()
    rows[:, ROUND] = schedule.rounds - 1 - rows[:, ROUND]
    rows[:, [SRC, SBUF, SCHUNK, DST, DBUF, DCHUNK]] = rows[:, [DST, DBUF, DCHUNK, SRC, SBUF, SCHUNK]]
    rows[:, OP] = ADD if collective in REDUCING else COPY
    if schedule.result == Y:
        rows[:, [SBUF, DBUF]] = np.array([Y, X, T])[rows[:, [SBUF, DBUF]]]
    name, yields = f"{schedule.name} transposed", _yields(schedule)[::-1]
    return schedule.replace(rows=rows, collective=collective, name=name, yields=yields)


def on(
    schedule: Schedule,
    ranks: int,
    members: Sequence[int] | Rows,
    *,
    chunks: int | None = None,
    cells: Cells | None = None,
) -> Schedule:
    """Run a table on some of `ranks` ranks, and on some chunks of a larger buffer.

    Args:
        members: For each rank of the table, the rank that takes its part.
        cells: For each chunk of the table, the chunks that it becomes in a buffer of `chunks`. None: the same.
    """
    if schedule.scratch:
        raise ArgumentError(f"{schedule.name}: on() does not support tables with scratch chunks of their own")
    found = np.arange(schedule.chunks)[:, None] if cells is None else cells
    if len(members) != schedule.ranks or len(found) != schedule.chunks:
        raise ArgumentError(
            f"{schedule.name}: on() got members for {len(members)} ranks and cells for {len(found)} chunks, expected "
            f"{schedule.ranks} and {schedule.chunks}"
        )
    rows, end = unwrap(schedule).copy(), np.cumsum([0, *map(len, found)])
    rows[:, [SRC, DST]] = np.asarray(members)[rows[:, [SRC, DST]]]
    # At first, the new chunks are numbered by their places in the cells, so that rows stay as few as they are.
    rows[:, N] = end[rows[:, SCHUNK] + rows[:, N]] - end[rows[:, SCHUNK]]
    rows[:, [SCHUNK, DCHUNK]] = end[rows[:, [SCHUNK, DCHUNK]]]
    rows, places = rows[rows[:, N] > 0], np.array([*chain.from_iterable(found)], np.int64)
    if (np.diff(places) != 1).any():
        rows = singles(rows)
    rows[:, [SCHUNK, DCHUNK]] = places[rows[:, [SCHUNK, DCHUNK]]]
    total, root = chunks or schedule.chunks, int(members[schedule.root])
    return schedule.replace(ranks=ranks, chunks=total, rows=rows, root=root, symmetric=False, hosts=None)


def pipeline(schedule: Schedule, segments: int, lag: int = 1) -> Schedule:
    """Run a table on each of `segments` parts of the vector; each part starts `lag` rounds after the one before."""
    if segments < 1 or lag < 0:
        raise ArgumentError(f"pipeline: got {segments} segments {lag} rounds apart, expected at least 1 and 0")
    whole = np.arange(schedule.chunks)
    parts = []
    for j in range(segments):
        # In collectives with blocks, each block is cut into segments, not the vector.
        cells = (whole * segments + j if schedule.collective in BLOCKED else whole + j * schedule.chunks)[:, None]
        parts.append(_later(on(schedule, schedule.ranks, range(schedule.ranks), cells=cells).rows, j * lag))
    name = f"{schedule.name} in {segments} segments"
    chunks = segments * schedule.chunks
    return schedule.replace(chunks=chunks, rows=by_round(parts), name=name, yields=(), symmetric=False)


def fold(core: Schedule, ranks: int) -> Schedule:
    """Extend an all_reduce to more ranks, at most twice as many.

    Each extra rank first sends its vector to a rank of the core, and gets the result from it afterwards.
    """
    q, C = core.ranks, core.chunks
    if core.collective != "all_reduce" or not q <= ranks <= 2 * q:
        raise ArgumentError(f"fold: {core.name} is not an all_reduce that can be extended to {ranks} ranks")
    if ranks == q:
        return core
    members = np.concatenate([2 * np.arange(ranks - q) + 1, np.arange(2 * (ranks - q), ranks)])

    def hand_in(r: Rows, p: int) -> Iterator[Transfer]:
        out = 2 * r[: p - q]
        yield send(out, out + 1, 0, n=C, op=ADD)

    def hand_back(r: Rows, p: int) -> Iterator[Transfer]:
        out = 2 * r[: p - q]
        yield send(out + 1, out, 0, n=C, sbuf=core.result)

    before, after = (trace(part, ranks, C, "all_reduce", result=core.result) for part in (hand_in, hand_back))
    return seq(before, on(core, ranks, members), after).replace(name=f"{core.name} folded")


def once(schedule: Schedule) -> Schedule:
    """Drop sends of chunks that the receiver already has. Only for tables that copy."""
    if (schedule.rows[:, OP] != COPY).any():
        raise ArgumentError(f"{schedule.name}: combines chunks, but once() takes only tables that copy")
    schedule = spread(schedule)
    rows, C = expand(schedule), schedule.chunks
    held = np.zeros((schedule.ranks, 3, C), bool)
    held[tuple(np.array(list(contract(schedule).before)).T)] = True
    first = np.zeros(len(rows), bool)
    first[np.unique((rows[:, DST] * 3 + rows[:, DBUF]) * C + rows[:, DCHUNK], return_index=True)[1]] = True
    return schedule.replace(rows=rows[first & ~held[rows[:, DST], rows[:, DBUF], rows[:, DCHUNK]]])


def _same_shape(what: str, parts: tuple[Schedule, ...]) -> None:
    if len({(part.ranks, part.chunks, part.scratch, part.symmetric) for part in parts}) != 1:
        shapes = ", ".join(
            f"{part.name}: {part.ranks} ranks, {part.chunks} chunks"
            f"{f', {part.scratch} of scratch' * bool(part.scratch)}{', symmetric' * part.symmetric}"
            for part in parts
        )
        raise ArgumentError(f"{what}: got parts of {shapes or 'nothing'}, expected the same ranks and chunks in each")


def _yields(schedule: Schedule) -> tuple[Line | None, ...]:
    """The lines of the rounds that the table spans; None where they are not known."""
    return (*schedule.yields, *[None] * schedule.rounds)[: schedule.rounds]


def _later(rows: Rows, rounds: int) -> Rows:
    rows = rows.copy()
    rows[:, ROUND] += rounds
    return rows


def by_round(parts: list[Rows]) -> Rows:
    """The rows of all parts, round by round."""
    rows = np.concatenate(parts)
    return rows[np.argsort(rows[:, ROUND], kind="stable")]
