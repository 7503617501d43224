"""all_gather: every rank gets the blocks of all ranks. Chunk r is the block of rank r. Naive first."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from ..table import Rows, Transfer, send
from .catalogue import algorithm
from .graphs import skips


@algorithm("all_gather")
def direct(r: Any, p: int) -> Iterator[list[Transfer]]:
    """Each rank sends its block to all other ranks, all in one round.

    rounds: 1
    bytes: m * F
    wins: inside a host, where each rank can read the memory of all
    source: folklore
    """
    yield [send(r, (r + d) % p, r) for d in range(1, p)]


@algorithm("all_gather")
def ring(r: Any, p: int) -> Iterator[Transfer]:
    """Blocks go round a ring: in each round each rank passes on the block that it got last.

    rounds: p - 1
    bytes: m * F
    wins: huge tensors on networks whose neighbours are near and whose core is narrow
    source: folklore; bandwidth optimality shown by Patarasuk and Yuan 2009
    """
    for s in range(p - 1):
        yield send(r, (r + 1) % p, (r - s) % p)


@algorithm("all_gather")
def two_way_ring(r: Any, p: int) -> Iterator[list[Transfer]]:
    """Blocks go round a ring both ways, so each has only half of the way to go.

    rounds: p // 2
    bytes: m * F
    wins: as the ring, where a rank can send both ways at once (two ports)
    source: folklore
    """
    for s in range(p // 2):
        clockwise = send(r, (r + 1) % p, (r - s) % p)
        anticlockwise = send(r, (r - 1) % p, (r + s) % p)
        yield [clockwise, anticlockwise] if s < (p - 1) // 2 else [clockwise]


@algorithm("all_gather", requires=("power_of_two",))
def recursive_doubling(r: Rows, p: int) -> Iterator[Transfer]:
    """Pairs swap all they have: neighbours first, then pairs of pairs, and so on.

    rounds: lg
    bytes: m * F
    wins: small and middling tensors, at powers of two
    source: Thakur, Rabenseifner and Gropp 2005
    """
    k = 1
    while k < p:
        yield send(r, r ^ k, r & -k, n=k)
        k *= 2


@algorithm("all_gather")
def bruck(r: Any, p: int) -> Iterator[Transfer]:
    """Each rank gets the blocks that follow its own: their number doubles each round, the last round gets the rest.

    rounds: lg
    bytes: m * F
    wins: small tensors at any number of ranks
    source: Bruck, Ho, Kipnis, Upfal and Weathersby 1997
    """
    have = 1
    while have < p:
        yield send(r, (r - have) % p, r, n=min(have, p - have))
        have *= 2


@algorithm("all_gather")
def circulant(r: Any, p: int) -> Iterator[Transfer]:
    """As Bruck, but with distances that halve p, rounded up, so that no round moves more than it must.

    rounds: lg
    bytes: m * F
    wins: the default with few rounds, at any number of ranks
    source: Träff 2024
    """
    for near, far in pairwise(skips(p)):
        yield send(r, (r - near) % p, r, n=far - near)


@algorithm("all_gather")
def pat(r: Any, p: int) -> Iterator[list[Transfer]]:
    """As Bruck backwards: far hops come first, with few blocks, near hops last, with many.

    rounds: lg
    bytes: m * F
    wins: networks in which near is cheaper than far
    source: Jeaugey 2025
    """
    d = 1 << (p - 1).bit_length() >> 1
    while d:
        yield [send(r, (r + d) % p, (r - o) % p) for o in range(0, p - d, 2 * d)]
        d //= 2


@algorithm("all_gather", requires=("power_of_two",))
def swing(r: Rows, p: int) -> Iterator[Transfer]:
    """Peers are 1, 1, 3, 5, 11 ... hops away, on alternating sides; the farthest come first.

    rounds: lg
    bytes: m * F
    wins: rings and tori, where short ways matter, at powers of two
    source: De Sensi, Bonato, Saam and Hoefler 2024
    """
    have = r[:, None]
    for s in reversed(range((p - 1).bit_length())):
        hop = (1 - (-2) ** (s + 1)) // 3
        peer = np.where(r % 2 == 0, r + hop, r - hop) % p
        yield send(r[:, None], peer[:, None], have)
        have = np.hstack([have, have[peer]])


@algorithm("all_gather", requires=("even",))
def neighbour_exchange(r: Rows, p: int) -> Iterator[Transfer]:
    """Neighbours pair up and swap; then each passes the pair of blocks that came last to its other neighbour.

    rounds: p // 2
    bytes: m * F
    wins: as the ring, with half of its rounds, at even numbers of ranks
    source: Chen, Zhang, Zhang and Yuan 2005
    """
    even = r % 2 == 0
    sides = [np.where(even, r + 1, r - 1) % p, np.where(even, r - 1, r + 1) % p]
    if p > 1:
        yield send(r, sides[0], r)
    first = r & -2
    for s in range(1, p // 2):
        yield send(r, sides[s % 2], first, n=2)
        first = first[sides[s % 2]]
