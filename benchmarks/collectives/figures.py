"""Percentiles, bandwidths and ratios, computed from measured times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .protocol import Cell, Sample


class Key(NamedTuple):
    """What was measured: the figures of two keys that differ in the contender alone may be compared."""

    op: str
    dtype: str
    ranks: int
    nbytes: int
    contender: str


@dataclass(frozen=True)
class Record:
    """One measurement in one round: seconds of each iteration, the slowest rank's."""

    key: Key
    turn: int
    times: list[float]
    wrong: int
    barrier_s: float


@dataclass(frozen=True)
class Figure:
    """All rounds of one key together; times in seconds."""

    least: float
    p50: float
    p99: float
    iterations: int
    wrong: int
    barrier_s: float


def by_contender(name: str) -> tuple[bool, bool, str]:
    """A sort key: ours first, the yardsticks last."""
    return name in ("memcpy", "floor"), not name.startswith("unisono"), name


def slowest(cell: Cell, turn: int, samples: Sequence[Sample]) -> Record:
    """What the ranks saw of one cell, as one record: an iteration takes as long as its slowest rank."""
    key = Key(cell.op, cell.dtype, len(samples), cell.nbytes, cell.contender)
    times = [max(iteration) for iteration in zip(*(sample.times for sample in samples), strict=True)]
    return Record(key, turn, times, sum(sample.wrong for sample in samples), max(s.barrier_s for s in samples))


def percentile(times: Sequence[float], percent: float) -> float:
    """The smallest of `times` that at least `percent` of them do not exceed."""
    ordered = sorted(times)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def figures(records: Iterable[Record]) -> dict[Key, Figure]:
    """One figure per key, over the iterations of all its rounds. The barrier is the median of the rounds."""
    rounds: dict[Key, list[Record]] = {}
    for record in records:
        rounds.setdefault(record.key, []).append(record)
    found = {}
    for key, same in rounds.items():
        times = [seconds for record in same for seconds in record.times]
        wrong, barrier_s = sum(record.wrong for record in same), percentile([record.barrier_s for record in same], 50)
        found[key] = Figure(min(times), percentile(times, 50), percentile(times, 99), len(times), wrong, barrier_s)
    return found


def algbw(nbytes: int, seconds: float) -> float:
    """Bytes over time, in GB/s (GB = 1e9)."""
    return nbytes / seconds / 1e9


def busbw(op: str, nbytes: int, ranks: int, seconds: float) -> float:
    """What the link of a rank carries, in GB/s, as nccl-tests counts it: comparable across numbers of ranks."""
    share = (ranks - 1) / ranks
    factor = {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "all_to_all": share}
    return algbw(nbytes, seconds) * factor.get(op, 1)


def ratio(known: Mapping[Key, Figure], ours: Key, theirs: Key) -> tuple[float, float] | None:
    """How many times as long they take, by least times and by medians; None where one is not measured."""
    if ours not in known or theirs not in known:
        return None
    return known[theirs].least / known[ours].least, known[theirs].p50 / known[ours].p50
