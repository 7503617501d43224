"""barrier: no rank leaves before all ranks have entered. Messages are empty: m is 0 bytes. Naive first."""

from collections.abc import Iterator

from ..table import JOIN, Rows, Transfer, send
from .catalogue import algorithm


@algorithm("barrier", chunks=1)
def direct(r: Rows, p: int) -> Iterator[list[Transfer]]:
    """Each rank tells all other ranks that it has entered, all in one round.

    rounds: 1
    bytes: m * (p - 1)
    wins: inside a host, up to a few dozen ranks
    source: folklore
    """
    yield [send(r, (r + d) % p, 0, op=JOIN) for d in range(1, p)]


@algorithm("barrier", chunks=1)
def dissemination(r: Rows, p: int) -> Iterator[Transfer]:
    """In round k each rank tells the rank 2^k after it of all ranks that it knows to have entered.

    rounds: lg
    bytes: m * lg
    wins: between hosts, at any number of ranks
    source: Hensgen, Finkel and Manber 1988
    """
    k = 1
    while k < p:
        yield send(r, (r + k) % p, 0, op=JOIN)
        k *= 2
