"""A schedule is a table of transfers; everything else is a query on the table.

One row says: in ROUND, rank SRC sends N consecutive chunks (cyclic in the buffer), starting at SCHUNK of its buffer
SBUF, to rank DST, which puts them into DCHUNK, ... of its buffer DBUF: copied (COPY), added (ADD) or joined (JOIN).

- Rows are global facts, so a send without its receive cannot be written.
- Within a round every read sees the state before the round; the writes of a rank happen in row order.
- Rounds are logical time stamps, not barriers: a rank waits only for the chunks that it needs.
- Chunks are symbolic: sizes are bound when the table runs, so one table serves every size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import AlgorithmError

__all__ = [
    "ADD",
    "COPY",
    "DBUF",
    "DCHUNK",
    "DST",
    "JOIN",
    "OP",
    "ROUND",
    "SBUF",
    "SCHUNK",
    "SRC",
    "N",
    "Rows",
    "Schedule",
    "T",
    "Transfer",
    "X",
    "Y",
    "expand",
    "send",
    "trace",
    "unwrap",
]  # fmt: skip

COPY, ADD, JOIN = 0, 1, 2
"""What the receiver does: replace; combine (each contribution exactly once); combine idempotently (barriers)."""

X, Y, T = 0, 1, 2
"""Buffers: the user's, a second one for results that cannot be made in place, scratch."""

ROUND, SRC, DST, SBUF, SCHUNK, DBUF, DCHUNK, N, OP = range(9)
"""The columns of a table."""

Rows = npt.NDArray[np.int64]
Transfer = tuple[Any, ...]
"""What `send` returns: the columns after ROUND, each an integer, an array, or a symbolic rank."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """A table of transfers with what it promises. Two are equal only if they are one: tables are compared by proof.

    ranks: how many take part. chunks: into how many chunks each buffer is cut. rows: (n, 9) int64, sorted by round.
    collective: the contract it keeps, such as "all_reduce". root: for the rooted ones. result: the buffer that holds
    the result, X (in place) or Y.
    """

    ranks: int
    chunks: int
    rows: Rows
    collective: str
    name: str = ""
    root: int = 0
    result: int = X

    @property
    def rounds(self) -> int:
        """How many rounds the table spans."""
        return int(self.rows[-1, ROUND]) + 1 if len(self.rows) else 0


def send(
    src: Any,
    dst: Any,
    chunk: Any,
    *,
    to: Any = None,
    n: Any = 1,
    op: int = COPY,
    sbuf: int = X,
    dbuf: int | None = None,
) -> Transfer:
    """For every i: rank src[i] sends chunks chunk[i] .. chunk[i] + n[i] - 1 to rank dst[i].

    Arguments broadcast as in numpy. to: the first chunk at the receiver, if another. op: COPY, ADD or JOIN.
    sbuf, dbuf: the buffers (X unless said; dbuf is sbuf unless said).
    """
    return src, dst, sbuf, chunk, sbuf if dbuf is None else dbuf, chunk if to is None else to, n, op


def trace(
    algorithm: Callable[..., Iterable[Transfer | list[Transfer]]],
    ranks: int,
    chunks: int,
    collective: str,
    *,
    root: int | None = None,
    result: int = X,
    name: str = "",
) -> Schedule:
    """Run an algorithm for all ranks at once and keep what it sends.

    The algorithm is a generator: each `yield` is a round, either one `send` or a list of them. It is called as
    `algorithm(r, p)`, with r the array 0 .. p-1, or as `algorithm(r, p, root)` when a root is given.
    """
    r = np.arange(ranks)
    rounds = algorithm(r, ranks) if root is None else algorithm(r, ranks, root)
    rows = []
    for k, moves in enumerate(rounds):
        for move in moves if isinstance(moves, list) else [moves]:
            columns = np.broadcast_arrays(k, *move)
            rows.append(np.stack([c.ravel() for c in columns], axis=1))
    table = np.concatenate(rows).astype(np.int64) if rows else np.zeros((0, 9), np.int64)
    return Schedule(ranks, chunks, table, collective, name or algorithm.__name__, root or 0, result)


def unwrap(schedule: Schedule) -> Rows:
    """The rows with every run that passes the end of its buffer split, so that runs are contiguous on both sides."""
    rows, chunks = schedule.rows, schedule.chunks
    while True:
        room = chunks - np.maximum(rows[:, SCHUNK], rows[:, DCHUNK])
        over = rows[:, N] > room
        if not over.any():
            return rows
        if (room <= 0).any():
            raise AlgorithmError(f"{schedule.name}: a chunk number is not below {chunks}")
        tail = rows[over].copy()
        for column in (SCHUNK, DCHUNK):
            tail[:, column] = (tail[:, column] + room[over]) % chunks
        tail[:, N] -= room[over]
        rows = rows.copy()
        rows[over, N] = room[over]
        # A tail stays behind its own row: in a round the order of rows says which write of a slot comes first.
        order = np.argsort(np.concatenate([np.arange(len(rows)), np.flatnonzero(over)]), kind="stable")
        rows = np.concatenate([rows, tail])[order]


def expand(schedule: Schedule) -> Rows:
    """The rows with one chunk each."""
    rows, n = schedule.rows, schedule.rows[:, N]
    out = np.repeat(rows, n, axis=0)
    step = np.arange(len(out)) - np.repeat(np.cumsum(n) - n, n)
    for column in (SCHUNK, DCHUNK):
        out[:, column] = (out[:, column] + step) % schedule.chunks
    out[:, N] = 1
    return out
