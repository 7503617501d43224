"""Prove algorithms in which all ranks do the same, from the rows of rank 0.

If an algorithm uses its rank only in +, - and % p, rank r sends what rank 0 sends, with r added to all ranks and
chunks. So the rows of rank 0 stand for the whole table, and proving them proves it: in seconds at 100,000 ranks, where
the whole table would have ten thousand million rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import numpy as np

from ...base.errors import ArgumentError
from ..contract import HOLDERS, fault
from ..moves import check_rows
from ..table import COPY, DCHUNK, DST, ROUND, SCHUNK, SRC, Rounds, Rows, Schedule, X, current_line
from .table_proof import Proof

_MOST_EXACT = 4096
"""Up to this number of ranks, sets of ranks are bits of an integer; above, sums of random numbers (fingerprints)."""

_PRIME = (1 << 61) - 1

_PROVABLE = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


class Rank:
    """A symbolic rank, "(my rank + offset) modulo p". It has only +, - and % p; everything else is a TypeError."""

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
    algorithm: Callable[..., Rounds], ranks: int, collective: str, *, result: int = X, name: str = ""
) -> Schedule:
    """Trace an algorithm with one chunk per rank for rank 0 only; return a symmetric schedule.

    `transpose`, `seq` and `as_collective` work on it as on any table; `spread` makes the rows of all ranks. Raises
    ArgumentError if the algorithm names a rank or chunk by its number, TypeError if it uses its rank in another way.
    """
    title = name or algorithm.__name__
    rows, yields = [], []
    rounds = algorithm(Rank(ranks), ranks)
    for k, moves in enumerate(rounds):
        yields.append(current_line(rounds))
        for src, dst, sbuf, chunk, dbuf, to, n, op in moves if isinstance(moves, list) else [moves]:
            if not (isinstance(src, Rank) and src.offset == 0):
                raise ArgumentError(f"{title}: round {k}: every rank must send for itself, not for {src}")
            rows.append((k, 0, _offset(title, dst), sbuf, _offset(title, chunk), dbuf, _offset(title, to), n, op))
    table = np.array(rows, np.int64).reshape(-1, 9)
    return Schedule(ranks, ranks, table, collective, title, 0, result, tuple(yields), symmetric=True)


def prove_symmetric(one: Schedule) -> Proof:
    """Prove a symmetric schedule for all ranks, in time proportional to the rows of rank 0.

    For all_gather, reduce_scatter, all_reduce and all_to_all with one chunk per rank. Above 4,096 ranks, an error is
    missed with a probability of 2^-61. Raises AlgorithmError with round and reason.
    """
    p = one.ranks
    if not one.symmetric or one.chunks != p or one.collective not in _PROVABLE:
        raise ArgumentError(
            f"{one.name}: a {one.collective} over {one.chunks} chunks has no symmetric proof; use prove()"
        )
    check_rows(one)
    start, end = HOLDERS.get(one.collective, ("all", "all"))
    sets = _Bits() if p <= _MOST_EXACT else _Fingerprints(p)
    state = _Slots(p, start, sets)
    for number, sends in groupby(_from_rank_zero(one).tolist(), key=lambda row: row[ROUND]):
        arriving = [item for row in sends for item in _arrivals(one, state, row)]
        written = set()
        for slot, chunk, ranks, op in arriving:
            mine = f"chunk r + {slot[1]} of rank r"
            if op == COPY:
                if slot in written:
                    raise fault(one, f"{mine} is written twice", number=number)
                state[slot] = chunk, ranks
            else:
                held = state.get(slot)
                if held is None:
                    raise fault(one, f"something is added to {mine}, which holds nothing", number=number)
                if held[0] != chunk:
                    raise fault(
                        one, f"chunk r + {chunk} would be added to chunk r + {held[0]} in {mine}", number=number
                    )
                if sets.overlap(held[1], ranks):
                    raise fault(one, f"a rank would be counted twice in {mine}", number=number)
                state[slot] = chunk, sets.union(held[1], ranks)
            written.add(slot)
    whole = sets.whole(p) if start == "all" else sets.single(0)
    for c in range(p) if end == "all" else (0,):
        # In an all_to_all, place r + c gets chunk r of rank r + c.
        want = (0, sets.single(c)) if one.collective == "all_to_all" else (c, whole)
        if state.get((one.result, c)) != want:
            raise fault(one, f"rank r ends without each part of chunk r + {c} exactly once")
    return Proof(one.name, p, one.rounds, sets.method)


class _Bits:
    """Sets of ranks, relative to the chunk that they contribute to, as bits of an integer."""

    method = "symmetric"

    def single(self, rank: int) -> int:
        return 1 << rank

    def whole(self, ranks: int) -> int:
        return (1 << ranks) - 1

    def overlap(self, a: int, b: int) -> bool:
        return a & b != 0

    def union(self, a: int, b: int) -> int:
        return a | b


class _Fingerprints(_Bits):
    """The same sets as sums of random numbers modulo a prime. A rank that is counted twice changes the sum."""

    method = "symmetric fingerprints"

    def __init__(self, ranks: int) -> None:
        self._marks: list[int] = np.random.default_rng(0).integers(1, _PRIME, ranks).tolist()

    def single(self, rank: int) -> int:
        return self._marks[rank]

    def whole(self, ranks: int) -> int:
        return sum(self._marks[:ranks]) % _PRIME

    def overlap(self, _a: int, _b: int) -> bool:
        return False

    def union(self, a: int, b: int) -> int:
        return (a + b) % _PRIME


class _Slots(dict[tuple[int, int], tuple[int, int]]):
    """The content of a rank's slots: (chunk - my rank, set of ranks). Initial contents are made on demand."""

    def __init__(self, ranks: int, start: str, sets: _Bits) -> None:
        super().__init__()
        self.ranks, self.start, self.sets = ranks, start, sets

    def get(self, slot: tuple[int, int], default: Any = None) -> Any:
        if slot in self:
            return self[slot]
        buffer, c = slot
        if buffer == X and (c == 0 or self.start == "all"):
            return c, self.sets.single(-c % self.ranks)
        return default


def _arrivals(one: Schedule, state: _Slots, row: list[int]) -> Iterator[tuple[tuple[int, int], int, int, int]]:
    """The chunks that a row brings to this rank from the rank `hop` before it: slot, chunk, ranks, op."""
    number, _, hop, sbuf, schunk, dbuf, dchunk, n, op = row
    p = one.ranks
    for i in range(n):
        held = state.get((sbuf, (schunk + i) % p))
        if held is None:
            raise fault(one, f"rank r sends its chunk r + {(schunk + i) % p}, which holds nothing", number=number)
        yield (dbuf, (dchunk + i - hop) % p), (held[0] - hop) % p, held[1], op


def _from_rank_zero(one: Schedule) -> Rows:
    """The rows, shifted so that rank 0 sends each of them; in a transposed table other ranks send."""
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
