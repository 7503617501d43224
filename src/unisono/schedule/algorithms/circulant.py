"""The circulant graph with ceil(lg p) neighbours per rank, and the round-optimal broadcast of n blocks along it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..table import Rows, Transfer, send


def skips(p: int) -> list[int]:
    """The distances between neighbours, ascending, and p: p halved repeatedly, rounded up, down to 1."""
    distances = [p]
    while distances[0] > 1:
        distances.insert(0, -(-distances[0] // 2))
    return distances


def block_rounds(r: Rows, p: int, root: int, n: int) -> Iterator[Transfer]:
    """Broadcast n blocks in n - 1 + ceil(lg p) rounds (Träff 2024).

    A phase has one round per skip. In the round of skip k, each rank sends a block to the rank far[k] after it and gets
    one from the rank far[k] before it. In each phase a rank gets one new block, and all but one of the blocks of the
    phase before. Blocks below 0 do not exist and are not sent; blocks above the last become the last.
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
    """The smallest skip on the greedy path from the root to rank v, by which v gets its first block."""
    for k in reversed(range(len(far) - 1)):
        if far[k] == v:
            return k
        if far[k] < v:
            v -= far[k]
    return len(far) - 1


def _received(v: int, far: list[int]) -> list[int]:
    """The block that rank v gets in each round of a phase; blocks of the phase before are numbered -1, -2, ...

    In the round of skip k the sender is far[k] before v. It has the block of every greedy path with a stop between
    far[k + 1] and far[k] before v. A search over greedy paths takes, for each k, the nearest such stop whose block v
    does not have yet.
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
