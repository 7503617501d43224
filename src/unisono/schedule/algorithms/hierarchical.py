"""Algorithms for islands of ranks, such as the hosts of a cluster: fast within an island, slow between islands.

Ranks are numbered island by island. The ranks with the same number within their islands are a rail.
"""

from collections.abc import Iterator
from math import isqrt

from ..hosts import Hosts
from ..table import Rows, Schedule, T, Transfer, Y, send
from .catalogue import algorithm, composed


def island(p: int) -> int:
    """The default number of ranks on an island, l in the formulas: the largest divisor of p up to its square root."""
    return max(d for d in range(1, isqrt(p) + 1) if p % d == 0)


@composed("all_reduce", name="hierarchical", requires=("commutative",))
def all_reduce(p: int, local: int = 0) -> Schedule:
    """A reduce_scatter on each island, then an all_reduce along each rail, then an all_gather on each island.

    rounds: 2 * min(1, l - 1) + 2 * rounds_for(p / l)
    bytes: 2 * m * F
    wins: clusters with fast islands: across goes only 1 / l of the vector per rank
    source: folklore; direct inside, circulant (Träff 2024) across
    """
    from .over_hosts import spanning  # calls on one host do without

    local = local or island(p)
    islands = Hosts(tuple(tuple(range(first, first + local)) for first in range(0, p, local)))
    return spanning("all_reduce", islands).replace(hosts=None)


@algorithm("all_to_all", name="hierarchical")
def all_to_all(r: Rows, p: int, local: int = 0) -> Iterator[list[Transfer] | Transfer]:
    """Blocks go to the rank of their own island on the receiver's rail, then along the rail, many in one message.

    rounds: l - 1 + p / l - 1
    bytes: m * ((l - 1) / l + (p / l - 1) * l / p)
    wins: small blocks on clusters with fast islands
    source: folklore
    """
    local = local or island(p)
    islands = p // local
    here, seat = r // local, r % local
    for s in range(local):
        other = (seat + s) % local
        yield [send(r, here * local + other, i * local + other, to=i * local + seat, dbuf=T) for i in range(islands)]
    for s in range(islands):
        there = (here + s) % islands
        yield send(r, there * local + seat, there * local, to=here * local, n=local, sbuf=T, dbuf=Y)
