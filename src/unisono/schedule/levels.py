"""Count a table over hosts by level: what stays inside a host, and what goes between hosts.

Amounts are fractions of the vector of m bytes, as in `count`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.errors import ArgumentError
from .hosts import Hosts
from .table import DST, ROUND, SRC, N, Rows, Schedule, spread


@dataclass(frozen=True)
class Levels:
    """The costs of a table by level.

    inside, between: the number of rounds in which something moves between ranks of one host, of several hosts.
    leaves, enters: per host, what goes to other hosts and what comes from them. messages: the most messages that one
    rank sends to other hosts.
    """

    inside: int
    between: int
    leaves: tuple[float, ...]
    enters: tuple[float, ...]
    messages: int

    @property
    def most(self) -> float:
        """What the busiest host sends or receives; the time of a link that can do both at once depends on it."""
        return max(*self.leaves, *self.enters)


@dataclass(frozen=True)
class HostBounds:
    """Lower bounds: rounds between hosts with one message at a time; what the busiest host must send, and receive."""

    rounds: int
    leaves: float
    enters: float


def levels(schedule: Schedule) -> Levels:
    """Count a table whose hosts are known. Raises ArgumentError for one that knows none."""
    if schedule.hosts is None:
        raise ArgumentError(f"{schedule.name}: which ranks share a host? Set `hosts`")
    return levels_of(spread(schedule).rows, schedule.hosts, schedule.chunks)


def levels_of(rows: Rows, hosts: Hosts, chunks: int) -> Levels:
    """Count rows, of which only the round, the ranks and the number of chunks matter. chunks: of the whole vector."""
    n, host = len(hosts.members), np.array([hosts.host_of(rank) for rank in range(hosts.ranks)])
    rows = rows[rows[:, SRC] != rows[:, DST]]
    src, dst = host[rows[:, SRC]], host[rows[:, DST]]
    far = src != dst
    sent, received = (np.bincount(end[far], rows[far, N], n) / chunks for end in (src, dst))
    messages = np.unique(rows[far][:, [ROUND, SRC, DST]], axis=0)
    return Levels(
        inside=len(np.unique(rows[~far, ROUND])),
        between=len(np.unique(rows[far, ROUND])),
        leaves=tuple(sent.tolist()),
        enters=tuple(received.tolist()),
        messages=int(np.bincount(messages[:, 1], minlength=1).max()),
    )


def host_bounds(collective: str, hosts: Hosts, root: int = 0) -> HostBounds:
    """What no algorithm can be below, whatever moves inside hosts.

    Rounds: as for ranks, news of all hosts at most doubles in one. Bytes: what others need and only one host has must
    leave it, in the best case as a part of one sum per host; and what all hosts receive, others have sent, so the
    busiest sends at least the mean. For all_reduce Patarasuk and Yuan 2009.
    """
    n, p, home = len(hosts.members), hosts.ranks, hosts.host_of(root)
    share = [len(host) / p for host in hosts.members]
    rest = [1 - part for part in share]
    mean = (n - 1) / n
    others = [share[host] for host in range(n) if host != home]
    far, away = float(n > 1), max(others, default=0.0)
    pairs = max(len(host) * part for host, part in zip(hosts.members, rest, strict=True))
    most = max(rest)
    gathered = max(*share, mean) if n > 1 else 0.0
    bounds = {
        "broadcast": (far, far),
        "reduce": (far, far),
        "scatter": (rest[home], away),
        "gather": (away, rest[home]),
        "all_gather": (gathered, most),
        "reduce_scatter": (most, gathered),
        "all_reduce": (2 * mean, 2 * mean),
        "all_to_all": (pairs, pairs),
        "barrier": (0.0, 0.0),
        "scan": (far, far),
        "exscan": (far, far),
    }
    if collective not in bounds:
        raise ArgumentError(
            f"{collective!r} is no collective that has lower bounds; those that have: {', '.join(bounds)}"
        )
    return HostBounds((n - 1).bit_length(), *bounds[collective])
