"""exscan: rank r gets the combination of the ranks 0 to r - 1, and rank 0 nothing. Naive first."""

from __future__ import annotations

from collections.abc import Iterator

from ..table import ADD, Rows, Transfer, Y, send
from .declare import algorithm


@algorithm("exscan", chunks=1, result=Y)
def linear(r: Rows, p: int) -> Iterator[Transfer]:
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


@algorithm("exscan", chunks=1, result=Y)
def hillis_steele(r: Rows, p: int) -> Iterator[Transfer]:
    """Each rank sends its vector to the next rank; what they got is scanned as by Hillis and Steele.

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


@algorithm("exscan", chunks=1, result=Y)
def direct(r: Rows, p: int) -> Iterator[list[Transfer]]:
    """Each rank gets the vectors of all ranks before it, and combines them, without its own, in one pass.

    rounds: min(1, p - 1)
    bytes: m * (p - 1)
    wins: shared memory, where a vector is read where it lies
    source: folklore
    """
    if p > 1:
        others = [send(r[1:-d], r[1 + d :], 0, op=ADD, dbuf=Y) for d in range(1, p - 1)]
        yield [send(r[0], r[1:], 0, dbuf=Y), *others]
