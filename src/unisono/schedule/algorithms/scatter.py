"""scatter: every rank gets its block from the root. Chunk r is the block of rank r. Naive first."""

from collections.abc import Iterator

from ..table import Rows, Transfer, send
from .catalogue import algorithm
from .graphs import splits


@algorithm("scatter")
def linear(r: Rows, p: int, root: int) -> Iterator[Transfer]:
    """The root sends every rank its block.

    rounds: 1
    bytes: m * F
    wins: inside a host, and wherever m is large
    source: folklore
    """
    others = (root + r[1:]) % p
    yield send(root, others, others)


@algorithm("scatter")
def binomial(r: Rows, p: int, root: int) -> Iterator[Transfer]:
    """The root hands half of the blocks to another rank, and both do the same with what they have.

    rounds: lg
    bytes: m * F
    wins: small blocks
    source: folklore
    """
    for sender, receiver, first, length in splits(r, p, root, 2):
        yield send(sender, receiver, first, n=length)
