"""scan: rank r gets the combination of the ranks 0 to r. Naive first."""

from __future__ import annotations

from collections.abc import Iterator

from ..table import ADD, Rows, Transfer, send
from .declare import algorithm


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
