"""Wait chains: from a rank that waits to the rank that the others wait for in the end. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from ...base.records import Wait


class WaitChain(tuple[int, ...]):
    """Ranks of the world, each of which waits for the next.

    The last rank does not wait, or waits for any of several ranks. If it is in the chain twice, no rank can go on.
    """

    __slots__ = ()

    @property
    def is_circle(self) -> bool:
        """Do ranks of the chain wait for each other?"""
        return self[-1] in self[:-1]

    @property
    def end(self) -> frozenset[int]:
        """The ranks that the others wait for in the end: the last one, or the ranks of the circle."""
        return frozenset(self[self.index(self[-1]) :])

    def text(self, waits: Mapping[int, Wait]) -> str:
        """In words, such as `rank 0 waits in group 'a' for rank 1, which waits in group 'b' for rank 0`."""
        links = [f"waits in group {waits[one].group!r} for rank {other}" for one, other in pairwise(self)]
        stuck = ": none of them can go on" if self.is_circle else ""
        return f"rank {self[0]} {', which '.join(links)}{stuck}"


def wait_chain(waits: Mapping[int, Wait], rank: int) -> WaitChain:
    """The chain from this rank to the rank that it waits for, and so on."""
    ranks = [rank]
    while ranks[-1] in waits and ranks[-1] not in ranks[:-1]:
        needs = waits[ranks[-1]].needs
        if needs is None:
            break
        ranks.append(needs)
    return WaitChain(ranks)
