"""Who waits for whom: from a rank that waits to the rank that all this hangs on. Pure functions of what ranks tell."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from ...base.records import Wait


class WaitChain(tuple[int, ...]):
    """Ranks of the world, each of which waits for the next.

    The last one does not wait, or may be helped by several others; or it is there twice, and nobody can go on.
    """

    __slots__ = ()

    @property
    def is_circle(self) -> bool:
        """Does it end where it has been before?"""
        return self[-1] in self[:-1]

    @property
    def end(self) -> frozenset[int]:
        """The ranks that all this hangs on: the last one, or those of the circle."""
        return frozenset(self[self.index(self[-1]) :])

    def text(self, waits: Mapping[int, Wait]) -> str:
        """Such as `rank 0 waits in group 'a' for rank 1, which waits in group 'b' for rank 0`."""
        links = [f"waits in group {waits[one].group!r} for rank {other}" for one, other in pairwise(self)]
        stuck = ": none of them can go on" if self.is_circle else ""
        return f"rank {self[0]} {', which '.join(links)}{stuck}"


def wait_chain(waits: Mapping[int, Wait], rank: int) -> WaitChain:
    """From a rank that waits, to the first that it waits for, and on."""
    ranks = [rank]
    while ranks[-1] in waits and ranks[-1] not in ranks[:-1]:
        needs = waits[ranks[-1]].needs
        if needs is None:
            break
        ranks.append(needs)
    return WaitChain(ranks)
