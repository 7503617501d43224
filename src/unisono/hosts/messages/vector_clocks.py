"""What ranks know of each other by the messages of a table alone, at any timing.

`clock[r, q]` counts what rank r knows of rank q: 0 is nothing, k + 1 that q has begun and has done its first k rounds.
A rank does a round when it has taken the round's messages. A message carries its sender's clock from before the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from ...schedule import DST, ROUND, SRC, Schedule, spread

Clock = npt.NDArray[np.int32]


def at_start(ranks: int) -> Clock:
    """The clock at the start: every rank knows only that it has begun itself."""
    clock: Clock = np.eye(ranks, dtype=np.int32)
    return clock


def after_round(clock: Clock, done: int, pairs: Iterable[tuple[int, int]]) -> Clock:
    """The clock after a round with messages between these pairs (source, destination); `done` rounds are over then."""
    after: Clock = clock.copy()
    for src, dst in pairs:
        np.maximum(after[dst], clock[src], out=after[dst])
    np.fill_diagonal(after, done + 1)
    return after


def hears_all(schedule: Schedule) -> bool:
    """Does a rank that has done its part know that all ranks have begun, whatever the table's sizes?"""
    clock = at_start(schedule.ranks)
    for done, pairs in enumerate(_rounds(schedule), 1):
        clock = after_round(clock, done, pairs)
    return bool(clock.all())


def _rounds(schedule: Schedule) -> Iterator[set[tuple[int, int]]]:
    rows = spread(schedule).rows
    for number in np.unique(rows[:, ROUND]):
        yield {(src, dst) for src, dst in rows[rows[:, ROUND] == number][:, [SRC, DST]].tolist() if src != dst}
