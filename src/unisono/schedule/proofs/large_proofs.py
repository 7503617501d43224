"""Prove tables that are too large for the exact proof: by random fingerprints, and from the rows of rank 0.

Fingerprints: a rank's contribution to a chunk is a random number below the prime 2^61 - 1; sums are modulo that prime.
A sum is a linear form in the random numbers, so a wrong set of contributions has the right sum with a probability of
2^-61 (Schwartz 1980, Zippel 1979). If chunks keep their numbers, they are independent of each other. So a random sample
of chunks can be followed through a table with millions of rows.

Symmetry: if an algorithm uses its rank only in +, - and % p, rank r sends what rank 0 sends, with r added to all ranks
and chunks. So the rows of rank 0 stand for the whole table, and proving them proves it: in seconds at 100,000 ranks,
where the whole table would have ten thousand million rows.
"""

from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from ...base.errors import ArgumentError
from ..contract import BLOCKED, HOLDERS, fault
from ..moves import check_rows
from ..table import (
    COPY,
    DBUF,
    DCHUNK,
    DST,
    OP,
    ROUND,
    SBUF,
    SCHUNK,
    SRC,
    N,
    Rounds,
    Rows,
    Schedule,
    X,
    current_line,
    spread,
)
from .table_proof import Proof

_PRIME = (1 << 61) - 1
_LOW = (1 << 32) - 1

_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_Flags = np.ndarray[Any, np.dtype[np.bool_]]


def prove_by_fingerprints(schedule: Schedule, *, columns: int = 16, seed: int = 0) -> Proof:
    """Prove that `columns` random chunks end as the contract says; an error is missed with probability 2^-61 per slot.

    For all collectives but all_to_all, barrier, scan and exscan. Raises AlgorithmError with round, slot and reason.
    """
    schedule = spread(schedule)
    p, C, rows = schedule.ranks, schedule.chunks, schedule.rows
    if schedule.collective not in HOLDERS or (rows[:, SCHUNK] != rows[:, DCHUNK]).any():
        raise ArgumentError(f"{schedule.name}: only tables in which no chunk changes its number have fingerprints")
    if schedule.collective in BLOCKED and C % p:
        raise ArgumentError(
            f"{schedule.name}: {schedule.collective} over {p} ranks needs a multiple of {p} chunks, not {C}"
        )
    check_rows(schedule)
    rng = np.random.default_rng(seed)
    sample = np.sort(rng.choice(C, min(columns, C), replace=False))
    marks = rng.integers(1, _PRIME, (p, len(sample)))
    start, end = (_holders(schedule, who, sample) for who in HOLDERS[schedule.collective])
    contributions = np.where(start, marks, 0)
    # value[b, r, j] is the content of slot (r, b, sample[j]), if full[b, r, j].
    value = np.zeros((3, p, len(sample)), np.int64)
    full = np.zeros(value.shape, bool)
    value[X], full[X] = contributions, start
    cuts = np.flatnonzero(np.diff(rows[:, ROUND], prepend=-1, append=-1))
    for first, last in pairwise(cuts):
        _round(schedule, rows[first:last], sample, value, full)
    want = _modulo((contributions >> 32).sum(axis=0), (contributions & _LOW).sum(axis=0))
    wrong = end & ~(full[schedule.result] & (value[schedule.result] == want))
    if wrong.any():
        rank, column = np.argwhere(wrong)[0]
        reason = f"rank {rank} ends without every part of chunk {sample[column]} exactly once"
        raise fault(schedule, reason, slot=(int(rank), schedule.result, int(sample[column])))
    return Proof(schedule.name, p, schedule.rounds, "fingerprints")


def _round(schedule: Schedule, rows: Rows, sample: _Numbers, value: _Numbers, full: _Flags) -> None:
    """Run one round on the sampled chunks: changes `value` and `full`."""
    row, column = np.nonzero((sample - rows[:, SCHUNK, None]) % schedule.chunks < rows[:, N, None])
    source = rows[row, SBUF], rows[row, SRC], column
    slot = rows[row, DBUF], rows[row, DST], column
    copied = rows[row, OP] == COPY

    def wrong(bad: _Flags, reason: str) -> None:
        if bad.any():
            at = row[bad.argmax()]
            chunk, dst = int(sample[column[bad.argmax()]]), int(rows[at, DST])
            reason = f"rank {rows[at, SRC]} sends chunk {chunk} to rank {dst}, but {reason}"
            raise fault(schedule, reason, number=int(rows[at, ROUND]), slot=(dst, int(rows[at, DBUF]), chunk))

    wrong(~full[source], "the sender holds nothing")
    number = np.ravel_multi_index(slot, value.shape)
    again = np.ones(len(row), bool)
    again[np.unique(number, return_index=True)[1]] = False
    wrong(copied & again, "the receiver's slot is written twice")
    moving = value[source]
    full.flat[number[copied]] = True
    wrong(~full[slot], "the receiver holds nothing that could be added to")
    value.flat[number[copied]] = moving[copied]
    sums, place = np.unique(number[~copied], return_inverse=True)
    high, low = np.zeros_like(sums), np.zeros_like(sums)
    np.add.at(high, place, moving[~copied] >> 32)
    np.add.at(low, place, moving[~copied] & _LOW)
    value.flat[sums] = (value.flat[sums] + _modulo(high, low)) % _PRIME


def _modulo(high: _Numbers, low: _Numbers) -> _Numbers:
    """high * 2^32 + low modulo 2^61 - 1. Sums of many numbers are kept as two halves, so that they do not overflow."""
    return np.asarray(((high >> 29) + ((high & (1 << 29) - 1) << 32) + low) % _PRIME)


def _holders(schedule: Schedule, who: str, sample: _Numbers) -> _Flags:
    """Which rank (row) holds which sampled chunk (column)."""
    rank = np.arange(schedule.ranks)[:, None]
    if who == "all":
        return np.ones((schedule.ranks, len(sample)), bool)
    return np.asarray(rank == (schedule.root if who == "root" else sample // (schedule.chunks // schedule.ranks)))


_PROVABLE = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


class Rank:
    """A symbolic rank, "(my rank + offset) modulo p". It has only +, - and % p; everything else is a TypeError."""

    def __init__(self, ranks: int, offset: int = 0) -> None:
        self.ranks, self.offset = ranks, offset % ranks

    def __add__(self, other: int) -> "Rank":
        return Rank(self.ranks, self.offset + int(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> "Rank":
        return Rank(self.ranks, self.offset - int(other))

    def __mod__(self, modulus: int) -> "Rank":
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


_Slots = dict[tuple[int, int], tuple[int, int]]
"""Buffer and chunk - my rank -> chunk - my rank, and the fingerprint of the ranks, relative to the chunk."""


def prove_symmetric(one: Schedule) -> Proof:
    """Prove a symmetric schedule for all ranks, in time proportional to the rows of rank 0.

    For all_gather, reduce_scatter, all_reduce and all_to_all with one chunk per rank. An error is missed with a
    probability of 2^-61. Raises AlgorithmError with round and reason.
    """
    p = one.ranks
    if not one.symmetric or one.chunks != p or one.collective not in _PROVABLE:
        raise ArgumentError(
            f"{one.name}: a {one.collective} over {one.chunks} chunks has no symmetric proof; use prove()"
        )
    check_rows(one)
    start, end = HOLDERS.get(one.collective, ("all", "all"))
    marks: list[int] = np.random.default_rng(0).integers(1, _PRIME, p).tolist()
    state: _Slots = {(X, c): (c, marks[-c]) for c in (range(p) if start == "all" else (0,))}
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
                there, held = state.get(slot, (None, 0))
                if there is None:
                    raise fault(one, f"something is added to {mine}, which holds nothing", number=number)
                if there != chunk:
                    raise fault(one, f"chunk r + {chunk} would be added to chunk r + {there} in {mine}", number=number)
                state[slot] = chunk, (held + ranks) % _PRIME
            written.add(slot)
    whole = sum(marks) % _PRIME if start == "all" else marks[0]
    for c in range(p) if end == "all" else (0,):
        # In an all_to_all, place r + c gets chunk r of rank r + c.
        want = (0, marks[c]) if one.collective == "all_to_all" else (c, whole)
        if state.get((one.result, c)) != want:
            raise fault(one, f"rank r ends without each part of chunk r + {c} exactly once")
    return Proof(one.name, p, one.rounds, "symmetric fingerprints")


def _arrivals(one: Schedule, state: _Slots, row: list[int]) -> Iterator[tuple[tuple[int, int], int, int, int]]:
    """The chunks that a row brings to this rank from the rank `hop` before it: slot, chunk, fingerprint, op."""
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
