"""reduce_scatter: every rank gets one block of the sum. Each is an all_gather transposed. Naive first."""

from ..combine import transpose
from ..table import Schedule
from . import all_gather
from .catalogue import composed, table


@composed("reduce_scatter")
def direct(p: int) -> Schedule:
    """Each rank sends every other rank its part, and adds up what it gets in rank order.

    rounds: 1
    bytes: m * F
    wins: inside a host; and where sums must not depend on anything but the order of the ranks
    source: folklore
    """
    return transpose(table(all_gather.direct, p))


@composed("reduce_scatter", requires=("commutative",))
def ring(p: int) -> Schedule:
    """Partial sums go round a ring: in each round each rank adds its own part to the sum that it got, and passes it on.

    rounds: p - 1
    bytes: m * F
    wins: huge tensors on networks whose neighbours are near and whose core is narrow
    source: Patarasuk and Yuan 2009
    """
    return transpose(table(all_gather.ring, p))


@composed("reduce_scatter", requires=("commutative",))
def two_way_ring(p: int) -> Schedule:
    """Partial sums go round a ring from both sides, and meet at their owner.

    rounds: p // 2
    bytes: m * F
    wins: as the ring, where a rank can send both ways at once (two ports)
    source: folklore
    """
    return transpose(table(all_gather.two_way_ring, p))


@composed("reduce_scatter", requires=("power_of_two", "commutative"))
def recursive_halving(p: int) -> Schedule:
    """Pairs swap the half that the other needs: far pairs first, with halves, and so on down to neighbours.

    rounds: lg
    bytes: m * F
    wins: small and middling tensors, at powers of two
    source: Thakur, Rabenseifner and Gropp 2005
    """
    return transpose(table(all_gather.recursive_doubling, p))


@composed("reduce_scatter", requires=("commutative",))
def bruck(p: int) -> Schedule:
    """Bruck's all_gather backwards: the first round takes the odd rest, and each further one half of what is left.

    rounds: lg
    bytes: m * F
    wins: small tensors at any number of ranks
    source: Bruck, Ho, Kipnis, Upfal and Weathersby 1997, transposed
    """
    return transpose(table(all_gather.bruck, p))


@composed("reduce_scatter", requires=("commutative",))
def circulant(p: int) -> Schedule:
    """The circulant all_gather backwards: each round halves what is left, rounded up.

    rounds: lg
    bytes: m * F
    wins: the default with few rounds, at any number of ranks
    source: Träff 2024
    """
    return transpose(table(all_gather.circulant, p))


@composed("reduce_scatter", requires=("commutative",))
def pat(p: int) -> Schedule:
    """PAT backwards: near hops come first, with much to carry, far hops last, with little.

    rounds: lg
    bytes: m * F
    wins: networks in which near is cheaper than far
    source: Jeaugey 2025
    """
    return transpose(table(all_gather.pat, p))


@composed("reduce_scatter", requires=("power_of_two", "commutative"))
def swing(p: int) -> Schedule:
    """Swing's all_gather backwards: peers are 1, 1, 3, 5, 11 ... hops away, the nearest come first.

    rounds: lg
    bytes: m * F
    wins: rings and tori, where short ways matter, at powers of two
    source: De Sensi, Bonato, Saam and Hoefler 2024
    """
    return transpose(table(all_gather.swing, p))


@composed("reduce_scatter", requires=("even", "commutative"))
def neighbour_exchange(p: int) -> Schedule:
    """Pairs of partial sums go to the one neighbour and the other in turn, and the last swap parts the pairs.

    rounds: p // 2
    bytes: m * F
    wins: as the ring, with half of its rounds, at even numbers of ranks
    source: Chen, Zhang, Zhang and Yuan 2005, transposed
    """
    return transpose(table(all_gather.neighbour_exchange, p))
