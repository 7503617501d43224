"""Proof of algorithms in which every rank does the same: one symbolic rank speaks for all.

A rank that knows only + and - and % p cannot do anything that another rank does not do too, turned by the difference of
their numbers. So the rows that rank 0 sends are the whole table, and running them proves it for every rank, at 65,536
ranks as well as at eight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from ..errors import AlgorithmError, ArgumentError
from .contract import HOLDERS
from .moves import check_rows
from .proof import Proof
from .table import COPY, DCHUNK, DST, ROUND, SCHUNK, SRC, Rows, Schedule, Transfer, X

__all__ = ["Rank", "prove_symmetric", "spread", "trace_symmetric"]


class Rank:
    """Every rank at once: "my rank + offset, modulo p". Only + and - and % p exist; all else is a TypeError."""

    def __init__(self, ranks: int, offset: int = 0) -> None:
        self.ranks, self.offset = ranks, offset % ranks

    def __add__(self, other: int) -> Rank:
        return Rank(self.ranks, self.offset + int(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> Rank:
        return Rank(self.ranks, self.offset - int(other))

    def __mod__(self, modulus: int) -> Rank:
        if modulus != self.ranks:
            raise TypeError(f"a symbolic rank is known modulo {self.ranks} only, not modulo {modulus}")
        return self

    def __repr__(self) -> str:
        return f"(r + {self.offset}) % {self.ranks}"


def trace_symmetric(
    algorithm: Callable[..., Iterable[Transfer | list[Transfer]]], ranks: int, collective: str, *, name: str = ""
) -> Schedule:
    """What rank 0 sends under an algorithm with one chunk per rank: a table in which it speaks for all ranks.

    `transpose`, `seq` and `as_collective` work on it as on any table; `spread` makes the full one. Raises ArgumentError
    for an algorithm that names a rank or a chunk by its number.
    """
    title = name or algorithm.__name__
    rows = []
    for k, moves in enumerate(algorithm(Rank(ranks), ranks)):
        for src, dst, sbuf, chunk, dbuf, to, n, op in moves if isinstance(moves, list) else [moves]:
            if not (isinstance(src, Rank) and src.offset == 0):
                raise ArgumentError(f"{title}: round {k}: every rank must send for itself, not for {src}")
            rows.append((k, 0, _offset(title, dst), sbuf, _offset(title, chunk), dbuf, _offset(title, to), n, op))
    return Schedule(ranks, ranks, np.array(rows, np.int64).reshape(-1, 9), collective, title)


def spread(one: Schedule) -> Schedule:
    """The full table of which `one` holds the rows of a single rank."""
    p = one.ranks
    rows = np.repeat(one.rows, p, axis=0)
    turn = np.tile(np.arange(p), len(one.rows))
    for column in (SRC, DST, SCHUNK, DCHUNK):
        rows[:, column] = (rows[:, column] + turn) % p
    return replace(one, rows=rows)


def prove_symmetric(one: Schedule) -> Proof:
    """Proof of the full table from the rows of a single rank: exact, in time proportional to those rows.

    For all_gather, reduce_scatter and all_reduce with one chunk per rank. Raises AlgorithmError with round and reason;
    chunk c there means "chunk number (my rank + c)".
    """
    p = one.ranks
    if one.chunks != p or one.collective not in ("all_gather", "reduce_scatter", "all_reduce"):
        raise ArgumentError(
            f"{one.name}: a {one.collective} over {one.chunks} chunks has no symmetric proof; use prove()"
        )
    check_rows(one)
    # What my slot (buffer, my rank + c) holds: origin chunk - my rank, and the ranks - origin chunk, as bits.
    # Counted from the chunk, a set of ranks stays the same number wherever it travels.
    start, end = HOLDERS[one.collective]
    state = _Slots(p, start)
    for number, sends in groupby(_from_rank_zero(one).tolist(), key=lambda row: row[ROUND]):
        arriving = [item for row in sends for item in _arrivals(one, state, row)]
        written = set()
        for slot, chunk, ranks, op in arriving:
            here = f"{one.name}: round {number}: chunk {slot[1]}"
            if op == COPY:
                if slot in written:
                    raise AlgorithmError(f"{here} is written twice")
                state[slot] = chunk, ranks
            else:
                held = state.get(slot)
                if held is None:
                    raise AlgorithmError(f"{here} holds nothing that could be added to")
                if held[0] != chunk:
                    raise AlgorithmError(f"{here} would have chunk {chunk} added to chunk {held[0]}")
                if held[1] & ranks:
                    raise AlgorithmError(f"{here} would count a rank twice")
                state[slot] = chunk, held[1] | ranks
            written.add(slot)
    everyone = (1 << p) - 1 if start == "all" else 1
    for c in range(p) if end == "all" else (0,):
        if state.get((one.result, c)) != (c, everyone):
            raise AlgorithmError(f"{one.name}: at the end chunk {c} does not hold each contribution exactly once")
    return Proof(one.name, p, one.rounds, "symmetric")


class _Slots(dict[tuple[int, int], tuple[int, int]]):
    """The state of one rank. What it holds at the start is made on demand: p sets of p bits would fill the memory."""

    def __init__(self, ranks: int, start: str) -> None:
        super().__init__()
        self.ranks, self.start = ranks, start

    def get(self, slot: tuple[int, int], default: Any = None) -> Any:
        if slot in self:
            return self[slot]
        buffer, c = slot
        if buffer == X and (c == 0 or self.start == "all"):
            return c, 1 << -c % self.ranks
        return default


def _arrivals(one: Schedule, state: _Slots, row: list[int]) -> Iterator[tuple[tuple[int, int], int, int, int]]:
    """What reaches me by a row, sent by the rank that is `hop` before me: slot, chunk, ranks, op."""
    number, _, hop, sbuf, schunk, dbuf, dchunk, n, op = row
    p = one.ranks
    for i in range(n):
        held = state.get((sbuf, (schunk + i) % p))
        if held is None:
            raise AlgorithmError(f"{one.name}: round {number}: chunk {(schunk + i) % p} is sent, but it holds nothing")
        yield (dbuf, (dchunk + i - hop) % p), (held[0] - hop) % p, held[1], op


def _from_rank_zero(one: Schedule) -> Rows:
    """The rows turned so that rank 0 sends each of them: a transposed row comes from elsewhere."""
    rows: Rows = one.rows.copy()
    for column in (DST, SCHUNK, DCHUNK):
        rows[:, column] = (rows[:, column] - rows[:, SRC]) % one.ranks
    rows[:, SRC] = 0
    return rows


def _offset(title: str, symbol: Any) -> int:
    if not isinstance(symbol, Rank):
        raise ArgumentError(
            f"{title}: {symbol!r} is the number of a rank or chunk; a symmetric algorithm has only r + k"
        )
    return symbol.offset
