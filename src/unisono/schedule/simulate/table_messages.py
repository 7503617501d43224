"""The messages of a table: all that a rank sends to another in one round is one message.

If all ranks do the same, messages are made from the rows of rank 0. Then an even sample stands for many rounds, or for
many messages per rank in a round.
"""

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from ..table import COPY, DST, OP, ROUND, SRC, N, Rows, Schedule, rows_of_rank_0
from .network import Ints, Numbers

MOST_MESSAGES = 1 << 20
"""About the number of messages that are made of a table in which all ranks do the same."""


class Messages(NamedTuple):
    """Messages by round, and within a round by sender and receiver.

    Attributes:
        starts: For each round the index of its first message; at the end the number of messages.
        share: The part of the vector in a message.
        added: The part of the vector that the receiver combines.
        weight: For how many equal messages a message stands.
        times: How often each round is repeated.
    """

    ranks: int
    starts: Ints
    src: Ints
    dst: Ints
    share: Numbers
    added: Numbers
    weight: float = 1.0
    times: float = 1.0


def messages(table: Schedule) -> list[Messages]:
    """The messages of a table, in sections that follow one another."""
    return list(_alike(table)) if table.symmetric else [_of_rows(table.ranks, table.rows, table.chunks)]


def _of_rows(ranks: int, rows: Rows, chunks: int) -> Messages:
    key = (rows[:, ROUND] * ranks + rows[:, SRC]) * ranks + rows[:, DST]
    order = np.argsort(key, kind="stable")
    key, share, combines = key[order], rows[order, N] / chunks, rows[order, OP] != COPY
    first = np.flatnonzero(np.diff(key, prepend=-1))
    key = key[first]
    sums = [np.add.reduceat(some, first) if len(first) else np.zeros(0) for some in (share, share * combines)]
    starts = np.append(np.flatnonzero(np.diff(key // ranks**2, prepend=-1)), len(key))
    return Messages(ranks, starts, key // ranks % ranks, key % ranks, sums[0], sums[1])


def _alike(one: Schedule) -> Iterator[Messages]:
    """The messages of a table in which all ranks do the same, from the rows of rank 0."""
    p, single = one.ranks, _of_rows(one.ranks, rows_of_rank_0(one), one.chunks)
    rounds = [
        (tuple(single.dst[a:b].tolist()), tuple(single.share[a:b].tolist()), tuple(single.added[a:b].tolist()))
        for a, b in pairwise(single.starts.tolist())
    ]
    runs = [(kind, len(list(same))) for kind, same in groupby(rounds)]
    most = max(1, MOST_MESSAGES // (p * max(1, sum(len(hops) for (hops, _, _), _ in runs) // max(1, len(runs)))))
    for part in np.array_split(np.arange(len(runs)), min(most, len(runs))) if runs else ():
        (hops, share, added), _ = runs[part[len(part) // 2]]
        yield _spread(p, hops, share, added, float(sum(runs[k][1] for k in part)))


def _spread(
    p: int, hops: tuple[int, ...], share: tuple[float, ...], added: tuple[float, ...], times: float
) -> Messages:
    """A round of all ranks, in which rank 0 sends over these distances."""
    most = max(1, MOST_MESSAGES // p)
    pick = np.arange(len(hops))
    if len(hops) > most:
        edges = np.linspace(0, len(hops), most + 1).astype(np.int64)
        pick = np.unique(edges[:-1] + np.random.default_rng(0).integers(0, np.diff(edges)))
    weight = len(hops) / len(pick)
    src = np.repeat(np.arange(p), len(pick))
    each = (np.tile(np.array(some)[pick], p) for some in (hops, share, added))
    step, of_vector, sums = each
    return Messages(p, np.array([0, len(src)]), src, (src + step) % p, of_vector, sums, weight, times)
