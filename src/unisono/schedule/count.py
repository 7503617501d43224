"""Count the costs of a table: rounds, messages, and what each rank sends, receives and adds.

Amounts are fractions of the vector of m bytes. The vector is the tensor; for scatter, gather, all_gather and
reduce_scatter the tensor of all blocks; for all_to_all one rank's tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..base.errors import ArgumentError
from .table import COPY, DST, OP, ROUND, SRC, N, Schedule


@dataclass(frozen=True)
class Counts:
    """The costs of a table.

    rounds: the number of rounds with messages. ports: the most messages that one rank sends, or receives, in a round.
    messages, sent, received, added: per rank, the last three as fractions of the vector. A copy within a rank is no
    message; additions count wherever the data comes from.
    """

    rounds: int
    ports: int
    messages: tuple[int, ...]
    sent: tuple[float, ...]
    received: tuple[float, ...]
    added: tuple[float, ...]

    @property
    def most_sent(self) -> float:
        """What the busiest rank sends."""
        return max(self.sent)

    @property
    def most_received(self) -> float:
        """What the busiest rank receives."""
        return max(self.received)

    @property
    def most_added(self) -> float:
        """What the busiest rank adds."""
        return max(self.added)


@dataclass(frozen=True)
class Bounds:
    """Lower bounds for algorithms with one port per rank: rounds; what the busiest rank sends or receives; and adds."""

    rounds: int
    sent: float
    added: float


def count(schedule: Schedule) -> Counts:
    """Count what a table moves."""
    if schedule.symmetric:
        return _count_symmetric(schedule)
    p, rows = schedule.ranks, schedule.rows
    far = rows[rows[:, SRC] != rows[:, DST]]
    messages = np.unique((far[:, ROUND] * p + far[:, SRC]) * p + far[:, DST])
    number, src, dst = messages // (p * p), messages // p % p, messages % p
    busiest = [np.unique(number * p + end, return_counts=True)[1].max(initial=0) for end in (src, dst)]

    def chunks(column: int, some: npt.NDArray[np.int64]) -> tuple[float, ...]:
        return tuple((np.bincount(some[:, column], some[:, N], p) / schedule.chunks).tolist())

    return Counts(
        rounds=len(np.unique(number)),
        ports=int(max(busiest)),
        messages=tuple(np.bincount(src, minlength=p).tolist()),
        sent=chunks(SRC, far),
        received=chunks(DST, far),
        added=chunks(DST, rows[rows[:, OP] != COPY]),
    )


def _count_symmetric(one: Schedule) -> Counts:
    """Count from the rows of rank 0: all ranks send, receive and add the same amounts."""
    p, rows = one.ranks, one.rows
    hops = (rows[:, DST] - rows[:, SRC]) % p
    messages = np.unique((rows[:, ROUND] * p + hops)[hops > 0])
    busy = np.unique(messages // p, return_counts=True)[1]
    sent, added = (float(rows[some, N].sum() / one.chunks) for some in (hops > 0, rows[:, OP] != COPY))
    return Counts(len(busy), int(busy.max(initial=0)), (len(messages),) * p, *((x,) * p for x in (sent, sent, added)))


def lower_bounds(collective: str, ranks: int) -> Bounds:
    """The lower bounds of Chan, Heimlich, Purkayastha and van de Geijn (2007), extended to scans and barriers.

    Rounds: data must reach all ranks, or come from all, and a round at most doubles the ranks that data has reached.
    Bytes: a rank must send what others need and it alone has. Additions: p - 1 vectors, at best shared equally.
    """
    lg, F = (ranks - 1).bit_length(), (ranks - 1) / ranks
    whole = float(ranks > 1)
    bounds = {
        "broadcast": (whole, 0.0),
        "reduce": (whole, F),
        "scatter": (F, 0.0),
        "gather": (F, 0.0),
        "all_gather": (F, 0.0),
        "reduce_scatter": (F, F),
        "all_reduce": (2 * F, F),
        "all_to_all": (F, 0.0),
        "barrier": (0.0, 0.0),
        "scan": (whole, F),
        "exscan": (whole, max(0, ranks - 2) / ranks),
    }
    if collective not in bounds:
        raise ArgumentError(
            f"{collective!r} is no collective that has lower bounds; those that have: {', '.join(bounds)}"
        )
    return Bounds(lg, *bounds[collective])
