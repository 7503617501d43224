"""A schedule is a table of transfers, one per row. Proofs, counts, drawings and what ranks run are made of the rows.

A rank is one process of a group, by its number. A collective is a call that all ranks of a group make together, such
as all_reduce. Each rank has the same three buffers: X for the user's tensor, Y for results that cannot be made in
place, T for scratch. Each buffer is cut into chunks of equal length; T may have more of them. A slot is one chunk of
one buffer of one rank. The contract of a collective says what the slots hold before, and what they must hold after
(`contract`).

A row says: in ROUND, rank SRC sends a run of N chunks (it wraps at the end of the buffer), starting at SCHUNK of its
buffer SBUF, to rank DST, which puts them at DCHUNK onwards in its DBUF. DST replaces what is there (COPY), adds to
it (ADD), or takes the union (JOIN, for barriers: duplicates count once).

An algorithm is a generator that yields the rounds, for all ranks at once. `trace` runs it, and returns the table:

    def ring(r, p):                              # an all_gather: r is the array 0 .. p-1, p the number of ranks
        for s in range(p - 1):
            yield send(r, (r + 1) % p, (r - s) % p)

    trace(ring, 4, 4, "all_gather")              # 4 ranks, 4 chunks: chunk k is first at rank k only

- A row is both the send and the receive, so neither can be missing.
- Within a round every read sees the state before the round. All that is added into a slot in one round is combined in
  one pass, in rank order; `moves` calls this one move.
- Rounds are logical times, not barriers: a rank waits only for the chunks that it needs.
- A table has no sizes. A call cuts its tensor into the chunks of the table, so one table serves all sizes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from ..base.errors import AlgorithmError, ArgumentError
from ..base.records import digest
from .hosts import Hosts
from .symmetric import Rank, Symmetric, of_rank_0

COPY, ADD, JOIN = 0, 1, 2
"""What the receiver does."""

X, Y, T = 0, 1, 2
"""The buffers."""

ROUND, SRC, DST, SBUF, SCHUNK, DBUF, DCHUNK, N, OP = range(9)
"""The columns of a table."""

Rows = np.ndarray[Any, np.dtype[np.int64]]
Transfer = tuple[Any, ...]
"""What `send` returns: the columns after ROUND, each an integer, an array, or a `symmetric.Rank`."""
Rounds = Iterable[Transfer | list[Transfer]]
"""What an algorithm yields: for each round one `send`, or a list of them."""
Line = tuple[str, int]
"""A line of source: file and number."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """A table of transfers and its contract. Compared by identity; `prove` checks that it keeps the contract.

    Attributes:
        ranks: The number of ranks.
        chunks: The number of chunks in each buffer.
        rows: (n, 9) int64, sorted by round.
        collective: The contract that the table keeps, such as "all_reduce".
        root: The root rank, in collectives such as broadcast and reduce.
        result: The buffer with the result, X (in place) or Y.
        yields: For each round the line of the `yield` that made it, if known.
        symmetric: The rows are those of rank 0 only; rank r adds r to all ranks and chunks, modulo `ranks`.
        hosts: The ranks of each host, if known; drawings and counts then separate traffic inside and between hosts.
        scratch: The number of chunks in T, if it has more of them than the other buffers.
    """

    ranks: int
    chunks: int
    rows: Rows
    collective: str
    name: str = ""
    root: int = 0
    result: int = X
    yields: tuple[Line | None, ...] = ()
    symmetric: bool = False
    hosts: Hosts | None = None
    scratch: int = 0

    def replace(self, **changes: Any) -> Self:
        """A copy with other values of these fields."""
        return replace(self, **changes)

    @cached_property
    def digest(self) -> int:
        """A 64-bit hash, the same for equal tables. Ranks prepare what they run once per digest."""
        shape = self.name, self.collective, self.ranks, self.chunks, self.root, self.result, self.symmetric
        return digest(*shape, *[self.scratch] * bool(self.scratch), self.rows.tobytes())

    def sizes(self, buffers: Any) -> Any:
        """The number of chunks in each of these buffers."""
        return np.where(buffers == T, max(self.scratch, self.chunks), self.chunks)

    @property
    def rounds(self) -> int:
        """The number of rounds in the table."""
        return int(self.rows[-1, ROUND]) + 1 if len(self.rows) else 0

    @property
    def spanned(self) -> Hosts | None:
        """The hosts that the table spans; None if they are not known, or if there is one."""
        return self.hosts if self.hosts and self.hosts.spans else None


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
    """Describe messages of one round: for every i, rank src[i] sends chunks chunk[i] .. chunk[i] + n[i] - 1 to rank
    dst[i].

    Args:
        src, dst, chunk, n: Integers or arrays, which broadcast as in numpy.
        to: The first chunk at the receiver. None: the same as `chunk`.
        op: COPY, ADD or JOIN.
        sbuf, dbuf: The buffers of sender and receiver. By default X, and the same for both.
    """
    return src, dst, sbuf, chunk, sbuf if dbuf is None else dbuf, chunk if to is None else to, n, op


def trace(
    algorithm: Callable[..., Rounds],
    ranks: int,
    chunks: int,
    collective: str,
    *,
    root: int | None = None,
    result: int = X,
    name: str = "",
) -> Schedule:
    """Run an algorithm for all ranks at once and return the table of its sends.

    Args:
        algorithm: A generator that yields one round at a time: one `send` or a list of them. It is called as
            `algorithm(r, p)` with r the array 0 .. p-1, or as `algorithm(r, p, root)` if a root is given.
        ranks: The number of ranks. `Symmetric(p)` makes a symmetric table, with one chunk for each rank.

    Raises:
        AlgorithmError: The algorithm yields something else.
        ArgumentError, TypeError: The table should be symmetric, but the ranks do not do the same.
    """
    title, symmetric = name or algorithm.__name__, isinstance(ranks, Symmetric)
    if symmetric and (chunks != ranks or root is not None):
        raise ArgumentError(f"{title}: is not symmetric: ranks differ in what they do, or do not have one chunk each")
    r: Any = Rank(ranks) if symmetric else np.arange(ranks)
    rounds = algorithm(r, ranks) if root is None else algorithm(r, ranks, root)
    if not isinstance(rounds, Iterable):
        raise AlgorithmError(f"{title} returns {rounds!r}, but it must yield rounds, each made of `send`")
    rows, yields = list[Any](), []
    for k, moves in enumerate(rounds):
        yields.append(_current_line(rounds))
        for move in moves if isinstance(moves, list) else [moves]:
            if not isinstance(move, tuple) or len(move) != OP:
                line = "" if (at := yields[-1]) is None else f" ({at[0]}:{at[1]})"
                said = f"{title}: round {k} is {move!r}"
                raise AlgorithmError(f"{said}, but it must yield what `send` returns, or a list of it{line}")
            if symmetric:
                rows.append([(k, *of_rank_0(move))])
            else:
                rows.append(np.stack([c.ravel() for c in np.broadcast_arrays(k, *move)], axis=1))
    table = np.concatenate(rows).astype(np.int64) if rows else np.zeros((0, 9), np.int64)
    return Schedule(int(ranks), int(chunks), table, collective, title, root or 0, result, tuple(yields), symmetric)


def _current_line(rounds: Rounds) -> Line | None:
    """The line of the `yield` at which a generator is suspended; None for other iterables."""
    frame = getattr(rounds, "gi_frame", None)
    return (frame.f_code.co_filename, frame.f_lineno) if frame else None


def spread(schedule: Schedule) -> Schedule:
    """Expand a symmetric table to the rows of all ranks. Other tables are returned unchanged."""
    if not schedule.symmetric:
        return schedule
    p = schedule.ranks
    rows = np.repeat(schedule.rows, p, axis=0)
    turn = np.tile(np.arange(p), len(schedule.rows))
    for column, size in ((SRC, p), (DST, p), (SCHUNK, schedule.chunks), (DCHUNK, schedule.chunks)):
        rows[:, column] = (rows[:, column] + turn) % size
    return schedule.replace(rows=rows, symmetric=False)


def rows_of_rank_0(schedule: Schedule) -> Rows:
    """The rows of a symmetric table, shifted so that rank 0 sends each."""
    rows, p = schedule.rows.copy(), schedule.ranks
    rows[:, [SRC, DST, SCHUNK, DCHUNK]] = (rows[:, [SRC, DST, SCHUNK, DCHUNK]] - rows[:, [SRC]]) % p
    return rows


def unwrap(schedule: Schedule) -> Rows:
    """The rows, with runs of chunks split at the end of a buffer, so that both sides are contiguous."""
    rows = spread(schedule).rows
    while True:
        sizes = schedule.sizes(rows[:, [SBUF, DBUF]])
        room = (sizes - rows[:, [SCHUNK, DCHUNK]]).min(axis=1)
        over = rows[:, N] > room
        if not over.any():
            return rows
        if (room <= 0).any():
            raise AlgorithmError(f"{schedule.name}: a chunk number is not below {sizes[room.argmin()].min()}")
        tail = rows[over].copy()
        tail[:, [SCHUNK, DCHUNK]] = (tail[:, [SCHUNK, DCHUNK]] + room[over, None]) % sizes[over]
        tail[:, N] -= room[over]
        rows = rows.copy()
        rows[over, N] = room[over]
        # A tail stays right after its row: if a round copies into a slot and adds to it, the copy must come first.
        order = np.argsort(np.concatenate([np.arange(len(rows)), np.flatnonzero(over)]), kind="stable")
        rows = np.concatenate([rows, tail])[order]


def expand(schedule: Schedule, chunks: Sequence[int] | None = None) -> Rows:
    """Split rows into rows of one chunk.

    Args:
        chunks: Return only the rows that move these chunks. None: all rows.

    Raises:
        ArgumentError: Only some chunks are wanted, but the table mixes them with others.
    """
    if chunks is not None:
        return _of_chunks(schedule, chunks)
    out = singles(spread(schedule).rows)
    out[:, [SCHUNK, DCHUNK]] %= schedule.sizes(out[:, [SBUF, DBUF]])
    return out


def stray_row(schedule: Schedule) -> int | None:
    """The first row that changes the number of a chunk; None if each chunk can be followed on its own.

    In an all_to_all, each chunk goes straight from X to Y, to the rank that has its number.
    """
    rows = schedule.rows
    stays = rows[:, SCHUNK] == rows[:, DCHUNK]
    if schedule.collective == "all_to_all":
        straight = (rows[:, SBUF] == X) & (rows[:, DBUF] == Y) & (rows[:, N] == 1)
        stays = straight & (rows[:, SCHUNK] == rows[:, DST]) & (schedule.chunks == schedule.ranks)
    return None if stays.all() else int(stays.argmin())


def _of_chunks(schedule: Schedule, chunks: Sequence[int]) -> Rows:
    """The rows that move these chunks. Of a symmetric table, only the rows that are needed are made."""
    rows, C = schedule.rows, schedule.chunks
    if (stray := stray_row(schedule)) is not None:
        a, b = (f"chunk {rows[stray, c]} of {'XYT'[rows[stray, c - 1]]}" for c in (SCHUNK, DCHUNK))
        raise ArgumentError(f"{schedule.name}: row {stray} moves {a} to {b}, so no chunks can be selected. Pass None.")
    found = []
    for chunk in chunks:
        if schedule.symmetric:
            some = singles(rows)
            turn = chunk - some[:, SCHUNK, None]
            some[:, [SRC, DST, SCHUNK, DCHUNK]] = (some[:, [SRC, DST, SCHUNK, DCHUNK]] + turn) % C
        else:
            past = (chunk - rows[:, SCHUNK]) % C
            some = rows[past < rows[:, N]]
            some[:, DCHUNK] = (some[:, DCHUNK] + past[past < rows[:, N]]) % C
            some[:, [SCHUNK, N]] = chunk, 1
        found.append(some)
    out: Rows = np.concatenate([rows[:0], *found])
    return out[np.argsort(out[:, ROUND], kind="stable")]


def singles(rows: Rows) -> Rows:
    """Rows of one chunk each. Chunk numbers count up from the row's first and do not wrap."""
    n = rows[:, N]
    out: Rows = np.repeat(rows, n, axis=0)
    out[:, [SCHUNK, DCHUNK]] += (np.arange(len(out)) - np.repeat(np.cumsum(n) - n, n))[:, None]
    out[:, N] = 1
    return out
