"""The circulant graph in which every rank has ceil(lg p) neighbours, and its round-optimal broadcast of n blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedule import Rows, Transfer, send

__all__ = ["block_rounds", "skips"]


def skips(p: int) -> list[int]:
    """p halved again and again, rounded up, from 1 to p: the distances between neighbours, and p itself."""
    distances = [p]
    while distances[0] > 1:
        distances.insert(0, -(-distances[0] // 2))
    return distances


def block_rounds(r: Rows, p: int, root: int, n: int) -> Iterator[Transfer]:
    """The n - 1 + ceil(lg p) rounds in which n blocks get from the root to everybody (Träff 2024).

    Time goes in phases of one round per skip; in the round of skip k everybody sends to the rank that far on, and gets
    a block from the rank that far back. In each phase a rank gets one new block and all but one of the phase before.
    Some of them its neighbour sends for want of a better one: blocks below 0, and the last block again.
    """
    far = skips(p)
    q = len(far) - 1
    if q == 0:
        return
    gets = np.array([_received(v, far) for v in range(1, p)])
    early = -(n - 1) % q
    for time in range(early, n - 1 + q + early):
        phase, k = divmod(time, q)
        block = np.minimum(gets[:, k] + phase * q - early, n - 1)
        to = r[1:][block >= 0]
        yield send((root + to - far[k]) % p, (root + to) % p, block[block >= 0])


def _first_block(v: int, far: list[int]) -> int:
    """The smallest skip on the greedy way from the root to rank v: the first block that v gets came that way."""
    for k in reversed(range(len(far) - 1)):
        if far[k] == v:
            return k
        if far[k] < v:
            v -= far[k]
    return len(far) - 1


def _received(v: int, far: list[int]) -> list[int]:
    """Which block rank v gets in each round of a phase; those of the phase before count from -1 down.

    In the round of skip k the sender stands far[k] before v. It has the block of any greedy way that stops between
    far[k + 1] and far[k] before v. A search over greedy ways takes for each k in turn the nearest such stop whose block
    v has not got yet.
    """
    q, own, goal = len(far) - 1, _first_block(v, far), far[-1] + v
    free = [e for e in range(q, -1, -1) if e != own]
    taken: list[int] = []
    last_stop = 2 * far[-1]

    def search(at: int, longest: int) -> None:
        nonlocal last_stop
        for e in range(longest, -1, -1):
            stop = at + far[e]
            if len(taken) == q:
                return
            if e not in free or stop >= last_stop or stop > goal - far[len(taken)]:
                continue
            if stop <= goal - far[len(taken) + 1]:
                search(stop, e)
                if len(taken) == q:
                    return
            if at > goal - far[len(taken) + 1]:
                return
            last_stop = stop
            taken.append(e)
            free.remove(e)

    search(0, q)
    return [own if e == q else e - q for e in taken]
