"""all_reduce: every rank gets the sum of all vectors. Naive first.

A rank's vector is its tensor, of m bytes. An algorithm is a generator of rounds (`@algorithm`; see `schedule.table`),
or it makes its table of other tables (`@composed`), for p ranks. `table(...)` is the table of another algorithm, and
`combine` transforms tables: `transpose` reverses rounds and directions, and turns copies into adds; `seq` runs
tables one after the other; `replace` gives a table another contract; `pipeline` runs a table on each segment of
the vector, each `lag` rounds after the previous one; `fold` lets two ranks act as one, if a table needs a power of
two. Most are a transposed all_gather (a reduce_scatter), then the same all_gather: `all_gather` explains those that are
only named here, such as Bruck's. In an all_gather each rank begins with one part of the vector, its block, and gets the
blocks of all.

Each docstring has the idea, how many rounds there are, how many bytes the busiest rank sends, where the algorithm
wins, and its source. F is (p - 1) / p, lg the logarithm of p to base 2, rounded up; `formula` explains other names.
`requires` says what an algorithm needs: "commutative", that the op allows any order, because partial sums are not made
in the order of the ranks; "power_of_two", such a number of ranks.
"""

from collections.abc import Iterator

from ..combine import fold, pipeline, seq, transpose
from ..table import ADD, COPY, Rows, Schedule, Transfer, Y, send, trace
from . import all_gather, broadcast, graphs
from .catalogue import SEGMENTS, algorithm, composed, table


def there_and_back(schedule: Schedule) -> Schedule:
    """An all_reduce from a broadcast or all_gather: transposed it adds everything up, forwards it copies the sums."""
    return seq(transpose(schedule), schedule).replace(collective="all_reduce")


@composed("all_reduce")
def naive(p: int) -> Schedule:
    """Each rank sends its vector to rank 0, which adds them up and sends the sum to all.

    rounds: 2
    bytes: m * (p - 1)
    wins: nowhere; it shows what the others improve
    source: folklore
    """
    return there_and_back(table(broadcast.linear, p))


@composed("all_reduce")
def tree(p: int) -> Schedule:
    """Up a binomial tree, and down again.

    rounds: 2 * lg
    bytes: m * lg
    wins: small tensors, where rank 0 is no bottleneck
    source: folklore
    """
    return there_and_back(table(broadcast.binomial, p))


@composed("all_reduce")
def linear_pipeline(p: int) -> Schedule:
    """Segments are added up from rank to rank down to rank 0, and the sums go back the same way.

    rounds: 2 * (p - 2 + n)
    bytes: m * min(2, p - 1)
    wins: large tensors and few ranks
    source: van de Geijn 1994
    """
    return there_and_back(table(broadcast.chain, p))


@composed("all_reduce")
def double_binary_tree(p: int, segments: int = SEGMENTS) -> Schedule:
    """Each segment goes up one of two binary trees and down again, while others are on their way.

    rounds: at most 4 * lg + n
    bytes: at most 2 * m
    wins: large tensors and many ranks, where a rank can send two ways at once
    source: Sanders, Speck and Träff 2009
    """
    both = there_and_back(trace(graphs.double_tree, p, 2, "broadcast", root=0))
    return pipeline(both, segments // 2, lag=2)


@composed("all_reduce")
def recursive_doubling(p: int) -> Schedule:
    """Pairs swap their sums: neighbours first, then pairs of pairs; ranks beyond a power of two are folded in.

    rounds: floor_lg + 2 * folded
    bytes: m * (floor_lg + folded)
    wins: tiny tensors between hosts
    source: Thakur, Rabenseifner and Gropp 2005
    """

    def swaps(r: Rows, p: int) -> Iterator[Transfer]:
        k = 1
        while k < p:
            yield send(r, r ^ k, 0, op=ADD)
            k *= 2

    return fold(trace(swaps, _power_of_two(p), 1, "all_reduce"), p)


@composed("all_reduce", requires=("commutative",))
def ring(p: int) -> Schedule:
    """Partial sums travel round until each is whole at one rank, and whole sums travel round until all are everywhere.

    rounds: 2 * (p - 1)
    bytes: 2 * m * F
    wins: huge tensors on networks whose neighbours are near and whose core is narrow
    source: Patarasuk and Yuan 2009
    """
    return there_and_back(table(all_gather.ring, p))


@composed("all_reduce", requires=("commutative",))
def rabenseifner(p: int) -> Schedule:
    """Pairs swap and add halves, then quarters, and so on; the sums go back the same way; other ranks are folded in.

    rounds: 2 * floor_lg + 2 * folded
    bytes: 2 * m * (pow2 - 1) / pow2 + m * folded
    wins: middling and large tensors at powers of two
    source: Rabenseifner 2004
    """
    return fold(there_and_back(table(all_gather.recursive_doubling, _power_of_two(p))), p)


@composed("all_reduce", requires=("commutative",))
def circulant(p: int) -> Schedule:
    """The circulant all_gather there and back: as few rounds and bytes at any p as Rabenseifner's at powers of two.

    rounds: 2 * lg
    bytes: 2 * m * F
    wins: the default between hosts, at any number of ranks
    source: Träff 2024
    """
    return there_and_back(table(all_gather.circulant, p))


@composed("all_reduce", requires=("power_of_two", "commutative"))
def swing(p: int) -> Schedule:
    """Swing there and back: peers are near for the large blocks, and far for the small ones.

    rounds: 2 * lg
    bytes: 2 * m * F
    wins: rings and tori, where short ways matter, at powers of two
    source: De Sensi, Bonato, Saam and Hoefler 2024
    """
    return there_and_back(table(all_gather.swing, p))


@composed("all_reduce", requires=("commutative",))
def pat(p: int) -> Schedule:
    """PAT there and back: near hops for the large blocks, far hops for the small ones.

    rounds: 2 * lg
    bytes: 2 * m * F
    wins: networks in which near is cheaper than far
    source: Jeaugey 2025
    """
    return there_and_back(table(all_gather.pat, p))


@composed("all_reduce", requires=("commutative",))
def bruck(p: int) -> Schedule:
    """Bruck's all_gather there and back.

    rounds: 2 * lg
    bytes: 2 * m * F
    wins: small tensors at any number of ranks
    source: Bruck, Ho, Kipnis, Upfal and Weathersby 1997, transposed
    """
    return there_and_back(table(all_gather.bruck, p))


@algorithm("all_reduce", chunks=1, result=Y)
def one_shot(r: Rows, p: int) -> Iterator[list[Transfer]]:
    """Each rank gets the vectors of all ranks and adds them up in rank order: the same bits on every rank.

    rounds: 1
    bytes: m * (p - 1)
    wins: tiny tensors inside a host
    source: folklore
    """
    yield [send(q, r, 0, dbuf=Y, op=ADD if q else COPY) for q in range(p)]


@composed("all_reduce")
def two_shot(p: int) -> Schedule:
    """Each rank adds up its own part, in rank order, then all ranks get all parts.

    rounds: 2
    bytes: 2 * m * F
    wins: middling and large tensors inside a host
    source: folklore
    """
    return there_and_back(table(all_gather.direct, p))


def _power_of_two(p: int) -> int:
    return 1 << p.bit_length() - 1
