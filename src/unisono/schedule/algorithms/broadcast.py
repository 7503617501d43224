"""broadcast: every rank gets the vector of the root. Naive first."""

from collections.abc import Iterator

import numpy as np

from ..combine import once, pipeline, seq
from ..table import Rows, Schedule, Transfer, send, trace
from . import all_gather, scatter
from .catalogue import RADIX, SEGMENTS, algorithm, composed, table
from .graphs import block_rounds, double_tree, splits


@algorithm("broadcast", chunks=1)
def linear(r: Rows, p: int, root: int) -> Iterator[Transfer]:
    """The root sends the vector to all other ranks, all in one round.

    rounds: 1
    bytes: m * (p - 1)
    wins: inside a host, where each rank can read the root's memory
    source: folklore
    """
    yield send(root, (root + r[1:]) % p, 0)


@algorithm("broadcast", chunks=1)
def binomial(r: Rows, p: int, root: int) -> Iterator[Transfer]:
    """Each rank that has the vector sends it to one that has not, so their number doubles in each round.

    rounds: lg
    bytes: m * lg
    wins: small tensors between hosts
    source: folklore
    """
    for sender, receiver, _, _ in splits(r, p, root, 2):
        yield send(sender, receiver, 0)


@algorithm("broadcast", chunks=1)
def knomial(r: Rows, p: int, root: int) -> Iterator[Transfer]:
    """Each rank that has the vector sends it to k - 1 that have not.

    rounds: lgk
    bytes: m * ((k - 1) * (lgk - 1) + ceil(p / k ** (lgk - 1)) - 1)
    wins: small tensors, where starting a message costs less than waiting for one
    source: folklore
    """
    for sender, receiver, _, _ in splits(r, p, root, RADIX):
        yield send(sender, receiver, 0)


@algorithm("broadcast", chunks=1, requires=("power_of_two",))
def bine(r: Rows, p: int, root: int) -> Iterator[Transfer]:
    """A binomial tree over negabinary numbers: it grows both ways round the ring, so that fewer hops are far.

    rounds: lg
    bytes: m * lg
    wins: small tensors on networks where near is cheaper than far, at powers of two
    source: De Sensi et al. 2025
    """
    digits = range((p - 1).bit_length())
    place = (root + sum(((r >> i & 1) * (-2) ** i for i in digits), 0 * r)) % p
    have = r[:1]
    for i in digits:
        new = have ^ p // 2**i - 1
        yield send(place[have], place[new], 0)
        have = np.concatenate([have, new])


@composed("broadcast")
def chain(p: int, root: int, segments: int = SEGMENTS) -> Schedule:
    """The linear pipeline: segments go from rank to rank, one behind the other.

    rounds: p - 2 + n
    bytes: m
    wins: large tensors and few ranks; best with sqrt((p - 2) * m * beta / alpha) segments
    source: van de Geijn 1994
    """

    def line(r: Rows, p: int, root: int) -> Iterator[Transfer]:
        way = (root + r) % p
        for k in range(p - 1):
            yield send(way[k], way[k + 1], 0)

    return pipeline(trace(line, p, 1, "broadcast", root=root), segments)


@composed("broadcast")
def scatter_all_gather(p: int, root: int) -> Schedule:
    """The root scatters the vector, and an all_gather puts it together again everywhere.

    rounds: 2 * lg
    bytes: 2 * m * F
    wins: large tensors between hosts
    source: van de Geijn 1994; Thakur, Rabenseifner and Gropp 2005
    """
    parts = seq(table(scatter.binomial, p, root), table(all_gather.circulant, p))
    return once(parts.replace(collective="broadcast"))


@composed("broadcast")
def double_binary_tree(p: int, root: int, segments: int = SEGMENTS) -> Schedule:
    """Half of the segments go down one binary tree, half down another; a leaf of one is an inner node of the other.

    rounds: at most 2 * lg + n - 1
    bytes: m
    wins: large tensors and many ranks
    source: Sanders, Speck and Träff 2009
    """
    return pipeline(trace(double_tree, p, 2, "broadcast", root=root), segments // 2, lag=2)


@composed("broadcast")
def circulant(p: int, root: int, segments: int = SEGMENTS) -> Schedule:
    """Each rank sends and gets a block in each round, along a circulant graph: n blocks cannot take fewer rounds.

    rounds: n - 1 + lg
    bytes: m * (n - 1 + lg) / n
    wins: middling and large tensors between hosts, at any number of ranks
    source: Träff 2024
    """

    def blocks(r: Rows, p: int, root: int) -> Iterator[Transfer]:
        return block_rounds(r, p, root, segments)

    return once(trace(blocks, p, segments, "broadcast", root=root))
