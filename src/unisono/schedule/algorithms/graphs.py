"""The graphs along which several collectives send: k-nomial trees, the double binary tree, and the circulant graph."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ..table import Rows, Transfer, send


def splits(r: Rows, p: int, root: int, k: int) -> Iterator[tuple[Rows, Rows, Rows, Rows]]:
    """A k-nomial tree, by rounds of (sender, receiver, first rank of the receiver's block, length of the block).

    At first all ranks are one block. Each round cuts every block into k parts, and the block's head sends to the heads
    of the parts. The head of a block is the root if the block contains it, otherwise its first rank. Blocks are
    consecutive ranks, so the transposed tree combines only neighbours, for every root.
    """
    width = 1
    while width * k < p:
        width *= k
    while width:
        first = r[::width]
        sender, receiver = _head(first, width * k, root), _head(first, width, root)
        new = sender != receiver
        yield sender[new], receiver[new], first[new], np.minimum(width, p - first)[new]
        width //= k


def _head(rank: Rows, width: int, root: int) -> Rows:
    """The head of the block of this width that contains a rank."""
    block = rank // width
    return np.where(block == root // width, root, block * width)


def double_tree(r: Rows, p: int, root: int) -> Iterator[list[Transfer]]:
    """Two binary trees, one for each half of the vector, in which no rank but the root has children in both.

    The other ranks, in order, have the labels 1 .. p - 1. A label's position is its number in the first tree, and one
    less in the second. Both are in-order trees, whose odd positions are leaves, so a leaf of one is an inner node of
    the other. An edge's colour is the parity of its round, chosen such that no rank sends twice, or receives twice, in
    a round. Edges that must differ form chains and even cycles, so two colours suffice (Sanders, Speck, Träff 2009).
    """
    name = np.concatenate([[root], r[r != root]])
    above = {(t, v): _parent(v - t, p - 1 - t) + t if v > t else 0 for t in (0, 1) for v in range(1, p)}
    below = defaultdict(list)
    for (t, v), up in above.items():
        below[t if up else 0, up].append((t, v))
    differ = [[(0, v), (1, v)] for v in range(1, p)] + [edges for edges in below.values() if len(edges) == 2]
    colour = _two_colours(differ)
    when: dict[tuple[int, int], int] = {}

    def arrives(edge: tuple[int, int]) -> int:
        if edge not in when:
            ready = arrives((edge[0], above[edge])) + 1 if above[edge] else 0
            when[edge] = ready + (ready + colour[edge]) % 2
        return when[edge]

    rounds = defaultdict(list)
    for edge in above:
        rounds[arrives(edge)].append(edge)
    for k in range(max(rounds, default=-1) + 1):
        tree, at, parent = np.array([(t, v, above[t, v]) for t, v in rounds[k]], np.int64).reshape(-1, 3).T
        yield [send(name[parent], name[at], tree)]


def _parent(v: int, last: int) -> int:
    """The parent of position v in the in-order tree of the positions 1 .. last; 0 for its root."""
    low = v & -v
    up = (v ^ low) | low << 1
    return up if up <= last else v ^ low


def _two_colours(differ: list[list[tuple[int, int]]]) -> dict[tuple[int, int], int]:
    """A colour, 0 or 1, for every item, such that the items of each pair differ."""
    others = defaultdict(list)
    for a, b in differ:
        others[a].append(b)
        others[b].append(a)
    colour: dict[tuple[int, int], int] = {}
    for item in others:
        open_ = [(item, 0)] if item not in colour else []
        while open_:
            at, mine = open_.pop()
            if at not in colour:
                colour[at] = mine
                open_ += [(other, 1 - mine) for other in others[at]]
    return colour


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
