"""Prove large tables by random fingerprints, on a sample of the chunks.

A rank's contribution to a chunk is a random number below the prime 2^61 - 1; sums are modulo that prime. A sum is a
linear form in the random numbers, so a wrong set of contributions has the right sum with a probability of 2^-61
(Schwartz 1980, Zippel 1979). If chunks keep their numbers, they are independent of each other. So a random sample of
chunks can be followed through a table with millions of rows.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ...base.errors import ArgumentError
from ..contract import BLOCKED, HOLDERS, fault
from ..moves import check_rows
from ..table import COPY, DBUF, DCHUNK, DST, OP, ROUND, SBUF, SCHUNK, SRC, N, Rows, Schedule, X, spread
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
