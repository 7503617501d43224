"""gather: the root gets the blocks of all ranks. Each is a scatter transposed. Naive first."""

from ..combine import transpose
from ..table import Schedule
from . import scatter
from .catalogue import composed, table


@composed("gather")
def linear(p: int, root: int) -> Schedule:
    """Every rank sends the root its block.

    rounds: 1
    bytes: m / p; received: m * F
    wins: inside a host, and wherever m is large
    source: folklore
    """
    return transpose(table(scatter.linear, p, root))


@composed("gather")
def binomial(p: int, root: int) -> Schedule:
    """Neighbours put their blocks together, then pairs, and so on up to the root.

    rounds: lg
    bytes: m * max(p - below, below // 2) / p; received: m * F
    wins: small blocks
    source: folklore
    """
    return transpose(table(scatter.binomial, p, root))
