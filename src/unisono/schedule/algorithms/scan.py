"""scan: rank r gets the combination of the ranks 0 to r. exscan: of the ranks 0 to r - 1, and rank 0 nothing.

Naive first, for each.
"""

from collections.abc import Iterator

from ..table import ADD, Rows, Transfer, Y, send
from .catalogue import algorithm


@algorithm("scan", chunks=1)
def linear(r: Rows, p: int) -> Iterator[Transfer]:
    """Each rank adds its vector to the sum of the ranks before it, and sends the result to the next rank.

    rounds: p - 1
    bytes: m
    wins: few ranks, or sums that should be made in the plainest order
    source: folklore
    """
    for k in range(p - 1):
        yield send(r[k], r[k + 1], 0, op=ADD)


@algorithm("scan", chunks=1)
def hillis_steele(r: Rows, p: int) -> Iterator[Transfer]:
    """In round k each rank adds the partial sum of the rank 2^k before it.

    rounds: lg
    bytes: m * lg
    wins: small tensors
    source: Hillis and Steele 1986
    """
    k = 1
    while k < p:
        yield send(r[:-k], r[k:], 0, op=ADD)
        k *= 2


@algorithm("scan", chunks=1)
def direct(r: Rows, p: int) -> Iterator[list[Transfer]]:
    """Each rank gets the vectors of all ranks before it, and combines them in one pass.

    rounds: min(1, p - 1)
    bytes: m * (p - 1)
    wins: shared memory, where a vector is read where it lies
    source: folklore
    """
    if p > 1:
        yield [send(r[:-d], r[d:], 0, op=ADD) for d in range(1, p)]


@algorithm("exscan", name="linear", chunks=1, result=Y)
def exscan_linear(r: Rows, p: int) -> Iterator[Transfer]:
    """Each rank sends its vector to the next rank; then each adds what it got to the sum that goes from rank to rank.

    rounds: p - 1
    bytes: at most 2 * m
    wins: few ranks, or sums that should be made in the plainest order
    source: folklore
    """
    if p > 1:
        yield send(r[:-1], r[1:], 0, dbuf=Y)
    for k in range(1, p - 1):
        yield send(r[k], r[k + 1], 0, op=ADD, sbuf=Y)


@algorithm("exscan", name="hillis_steele", chunks=1, result=Y)
def exscan_hillis_steele(r: Rows, p: int) -> Iterator[Transfer]:
    """Each rank sends its vector to the next rank; then the received vectors are scanned as by Hillis and Steele.

    rounds: min(1, p - 1) + rounds_for(max(1, p - 1))
    bytes: at most m * (1 + lg)
    wins: small tensors
    source: Hillis and Steele 1986
    """
    if p > 1:
        yield send(r[:-1], r[1:], 0, dbuf=Y)
    k = 1
    while k < p - 1:
        yield send(r[1:-k], r[1 + k :], 0, op=ADD, sbuf=Y)
        k *= 2


@algorithm("exscan", name="direct", chunks=1, result=Y)
def exscan_direct(r: Rows, p: int) -> Iterator[list[Transfer]]:
    """Each rank gets the vectors of all ranks before it, and combines them, without its own, in one pass.

    rounds: min(1, p - 1)
    bytes: m * (p - 1)
    wins: shared memory, where a vector is read where it lies
    source: folklore
    """
    if p > 1:
        others = [send(r[1:-d], r[1 + d :], 0, op=ADD, dbuf=Y) for d in range(1, p - 1)]
        yield [send(r[0], r[1:], 0, dbuf=Y), *others]
