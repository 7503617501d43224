"""all_to_all: block q of rank r becomes block r of rank q, out of place (X to Y). Naive first."""

from collections.abc import Iterator

from ..table import Rows, T, Transfer, X, Y, send
from .catalogue import algorithm


@algorithm("all_to_all")
def direct(r: Rows, p: int) -> Iterator[list[Transfer]]:
    """Each rank sends every other rank its block, all in one round.

    rounds: 1
    bytes: m * F
    wins: inside a host
    source: folklore
    """
    yield list(pairwise(r, p))


@algorithm("all_to_all")
def pairwise(r: Rows, p: int) -> Iterator[Transfer]:
    """In round s each rank sends to the rank s after it, so each gets one message per round.

    rounds: p - 1
    bytes: m * F
    wins: large tensors between hosts
    source: folklore
    """
    for s in range(p):
        peer = (r + s) % p
        yield send(r, peer, peer, to=r, dbuf=Y)


@algorithm("all_to_all")
def bruck(r: Rows, p: int) -> Iterator[Transfer | list[Transfer]]:
    """A block for the rank j after its own makes a hop of 2^k for each bit k of j; in round k all such hops are made.

    rounds: lg
    bytes: m * ones / p
    wins: small blocks
    source: Bruck, Ho, Kipnis, Upfal and Weathersby 1997
    """
    me, far = r[:, None], r
    yield send(r, r, r, dbuf=Y)
    k = 1
    while k < p:
        moves = []
        for starts in (True, False):
            for ends in (True, False):
                j = far[(far & k > 0) & ((far % k == 0) == starts) & ((far < 2 * k) == ends)]
                # A block starts in X, waits at place j of T between hops, and ends in Y at the place of its sender.
                chunk, sbuf = ((me + j) % p, X) if starts else (j, T)
                to, dbuf = ((me + k - j) % p, Y) if ends else (j, T)
                moves.append(send(me, (me + k) % p, chunk, to=to, sbuf=sbuf, dbuf=dbuf))
        yield moves
        k *= 2
