"""Count the costs of a table: rounds, messages, what each rank sends, receives and adds, and what goes between hosts.

Amounts are fractions of the vector of m bytes. The vector is the tensor; for scatter, gather, all_gather and
reduce_scatter it is the tensor of all blocks; for all_to_all it is one rank's tensor."""

from typing import Any, NamedTuple

import numpy as np

from ..base.errors import ArgumentError
from .hosts import Hosts
from .table import COPY, DST, OP, ROUND, SRC, N, Rows, Schedule, rows_of_rank_0


class Counts(NamedTuple):
    """The costs of a table.

    Attributes:
        rounds: The number of rounds with messages.
        ports: The most messages that one rank sends, or receives, in a round.
        messages: For each rank. A copy within a rank is not a message.
        sent: For each rank, as fractions of the vector.
        received: In the same way.
        added: In the same way, wherever the data comes from.
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


class Bounds(NamedTuple):
    """Lower bounds for algorithms in which a rank sends one message at a time.

    Attributes:
        rounds: Between hosts.
        sent: By the busiest host, as a fraction of the vector.
        received: By the busiest host.
        added: By the busiest rank.
    """

    rounds: int
    sent: float
    received: float
    added: float


def count(schedule: Schedule) -> Counts:
    """Count what a table moves. In a symmetric table all ranks move what rank 0 moves."""
    p, rows = schedule.ranks, rows_of_rank_0(schedule) if schedule.symmetric else schedule.rows
    far = rows[rows[:, SRC] != rows[:, DST]]
    messages = np.unique((far[:, ROUND] * p + far[:, SRC]) * p + far[:, DST])
    number, src, dst = messages // (p * p), messages // p % p, messages % p
    busiest = [np.unique(number * p + end, return_counts=True)[1].max(initial=0) for end in (src, dst)]

    def by_rank(found: np.ndarray) -> Any:
        return (found.sum().item(),) * p if schedule.symmetric else tuple(found.tolist())

    def chunks(column: int, some: Rows) -> tuple[float, ...]:
        amounts: tuple[float, ...] = by_rank(np.bincount(some[:, column], some[:, N], p) / schedule.chunks)
        return amounts

    return Counts(
        rounds=len(np.unique(number)),
        ports=int(max(busiest)),
        messages=by_rank(np.bincount(src, minlength=p)),
        sent=chunks(SRC, far),
        received=chunks(DST, far),
        added=chunks(DST, rows[rows[:, OP] != COPY]),
    )


def lower_bounds(collective: str, ranks: int | Hosts, root: int = 0) -> Bounds:
    """The lower bounds of Chan, Heimlich, Purkayastha and van de Geijn (2007), extended to hosts, scans and barriers.

    - Rounds: data must reach all hosts, or come from all, and a round at most doubles the number of hosts that it
      reached.
    - Bytes: a host must send what only it has and others need, at best as part of one sum per host. The busiest host
      sends at least the mean of what hosts receive. For all_reduce see Patarasuk and Yuan 2009.
    - Additions: p - 1 vectors, at best shared equally.

    Args:
        ranks: The hosts of the ranks, inside which traffic is free; or a number of ranks, each on its own host.
    """
    sizes = [1] * ranks if isinstance(ranks, int) else [len(host) for host in ranks.members]
    home = root if isinstance(ranks, int) else ranks.host_of(root)
    n, p = len(sizes), sum(sizes)
    far, mean, shared = float(n > 1), (n - 1) / n, (p - 1) / p
    rest, away = (p - sizes[home]) / p, max([*sizes[:home], *sizes[home + 1 :]], default=0) / p
    most, gathered = (p - min(sizes)) / p, far * max(max(sizes) / p, mean)
    pairs = max(size * (p - size) for size in sizes) / p
    bounds = {
        "broadcast": (far, far, 0.0),
        "reduce": (far, far, shared),
        "scatter": (rest, away, 0.0),
        "gather": (away, rest, 0.0),
        "all_gather": (gathered, most, 0.0),
        "reduce_scatter": (most, gathered, shared),
        "all_reduce": (2 * mean, 2 * mean, shared),
        "all_to_all": (pairs, pairs, 0.0),
        "barrier": (0.0, 0.0, 0.0),
        "scan": (far, far, shared),
        "exscan": (far, far, max(0, p - 2) / p),
    }
    if collective not in bounds:
        raise ArgumentError(f"{collective!r} has no lower bounds. Use one of {', '.join(bounds)}.")
    return Bounds((n - 1).bit_length(), *bounds[collective])


class Levels(NamedTuple):
    """The costs of a table inside and between hosts.

    Attributes:
        inside: The number of rounds with messages between ranks of one host.
        between: The number of rounds with messages between hosts.
        leaves: For each host, what goes to other hosts, as fractions of the vector.
        enters: For each host, what comes from other hosts.
    """

    inside: int
    between: int
    leaves: tuple[float, ...]
    enters: tuple[float, ...]

    @property
    def most(self) -> float:
        """What the busiest host sends or receives, which decides the time of a full-duplex link."""
        return max(*self.leaves, *self.enters)


def levels(schedule: Schedule) -> Levels:
    """Count a table inside and between hosts. Raises ArgumentError for a table without hosts."""
    if schedule.hosts is None:
        raise ArgumentError(f"{schedule.name}: has no hosts. Set `hosts` to say which ranks share one.")
    host, n = np.array(schedule.hosts.places), len(schedule.hosts.members)
    if schedule.symmetric:
        # The rows of all ranks may be too many: what all of them send over one distance is counted at once.
        rows, inside, between, moved = rows_of_rank_0(schedule), set[int](), set[int](), np.zeros((2, n))
        for distance in np.unique(rows[:, DST][rows[:, DST] != 0]):
            mine, other = rows[rows[:, DST] == distance], np.roll(host, -distance)
            far = host != other
            between.update(mine[:, ROUND].tolist() if far.any() else ())
            inside.update(mine[:, ROUND].tolist() if not far.all() else ())
            moved += [np.bincount(end[far], minlength=n) * mine[:, N].sum() for end in (host, other)]
    else:
        rows = schedule.rows[schedule.rows[:, SRC] != schedule.rows[:, DST]]
        ends = host[rows[:, SRC]], host[rows[:, DST]]
        far = ends[0] != ends[1]
        inside, between = (set(rows[some, ROUND].tolist()) for some in (~far, far))
        moved = np.array([np.bincount(end[far], rows[far, N], n) for end in ends])
    return Levels(len(inside), len(between), *(tuple((amounts / schedule.chunks).tolist()) for amounts in moved))
