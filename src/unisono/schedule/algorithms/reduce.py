"""reduce: the root gets the sum of all vectors. Each is a broadcast transposed. Naive first."""

from ..combine import transpose
from ..table import Schedule
from . import broadcast
from .catalogue import composed, table


@composed("reduce")
def linear(p: int, root: int) -> Schedule:
    """Each rank sends its vector to the root, which adds them up in rank order.

    rounds: 1
    bytes: m; received: m * (p - 1)
    wins: inside a host, where the root can read the memory of all ranks
    source: folklore
    """
    return transpose(table(broadcast.linear, p, root))


@composed("reduce")
def binomial(p: int, root: int) -> Schedule:
    """Half of the ranks that have a sum send it to the other half, until only the root has one.

    rounds: lg
    bytes: m; received: m * lg
    wins: small tensors between hosts
    source: folklore
    """
    return transpose(table(broadcast.binomial, p, root))


@composed("reduce")
def knomial(p: int, root: int) -> Schedule:
    """One of k ranks that have a sum gets the sums of the others, until only the root has one.

    rounds: lgk
    bytes: m; received: m * ((k - 1) * (lgk - 1) + ceil(p / k ** (lgk - 1)) - 1)
    wins: small tensors, where starting a message costs less than waiting for one
    source: folklore
    """
    return transpose(table(broadcast.knomial, p, root))


@composed("reduce", requires=("power_of_two", "commutative"))
def bine(p: int, root: int) -> Schedule:
    """The Bine tree backwards: sums come from both sides of the ring at once.

    rounds: lg
    bytes: m; received: m * lg
    wins: small tensors on networks where near is cheaper than far, at powers of two
    source: De Sensi et al. 2025
    """
    return transpose(table(broadcast.bine, p, root))


@composed("reduce", requires=("commutative",))
def chain(p: int, root: int) -> Schedule:
    """The linear pipeline backwards: sums of segments go from rank to rank towards the root.

    rounds: p - 2 + n
    bytes: m
    wins: large tensors and few ranks
    source: van de Geijn 1994
    """
    return transpose(table(broadcast.chain, p, root))


@composed("reduce", requires=("commutative",))
def reduce_scatter_gather(p: int, root: int) -> Schedule:
    """A reduce_scatter, whose blocks the root then gathers.

    rounds: 2 * lg
    bytes: m; received: 2 * m * F
    wins: large tensors between hosts
    source: Rabenseifner 2004
    """
    return transpose(table(broadcast.scatter_all_gather, p, root))


@composed("reduce", requires=("commutative",))
def double_binary_tree(p: int, root: int) -> Schedule:
    """Half of the segments go up one binary tree, half up another; a leaf of one is an inner node of the other.

    rounds: at most 2 * lg + n - 1
    bytes: m
    wins: large tensors and many ranks
    source: Sanders, Speck and Träff 2009
    """
    return transpose(table(broadcast.double_binary_tree, p, root))


@composed("reduce", requires=("commutative",))
def circulant(p: int, root: int) -> Schedule:
    """The circulant broadcast of n blocks backwards: each rank sends and adds a block in every round.

    rounds: n - 1 + lg
    bytes: m; received: m * (n - 1 + lg) / n
    wins: middling and large tensors between hosts, at any number of ranks
    source: Träff 2024
    """
    return transpose(table(broadcast.circulant, p, root))
