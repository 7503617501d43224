"""What a waiting rank concludes from what it sees of its peers: a pure function, without clocks, files or processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Disagree", "Failed", "Gone", "Late", "Patience", "PeerView", "Situation", "Verdict", "judge"]


@dataclass(frozen=True)
class PeerView:
    """A peer as seen now. number, signature: of the latest call it entered. gone: why it will not come, or "".
    gave_up: number of the call it gave up (0: none), whom it blames (-1: nobody), and its reason."""

    rank: int
    number: int
    signature: int
    gone: str = ""
    gave_up: tuple[int, int, str] = (0, -1, "")


@dataclass(frozen=True)
class Situation:
    """Where this rank is: the number and signature of its call, the rank it waits for, whether all have yet to agree,
    and whether its time is over."""

    number: int
    signature: int
    waiting_for: int
    at_gate: bool
    overdue: bool


@dataclass(frozen=True)
class Patience:
    """Nothing is wrong: wait on."""


@dataclass(frozen=True)
class Disagree:
    """The ranks made different calls."""


@dataclass(frozen=True)
class Gone:
    """This rank will not come any more."""

    rank: int
    how: str


@dataclass(frozen=True)
class Failed:
    """This rank gave the call up."""

    rank: int
    reason: str


@dataclass(frozen=True)
class Late:
    """Time is over, and these ranks are missing."""

    missing: tuple[int, ...]


Verdict = Patience | Disagree | Gone | Failed | Late


def judge(me: Situation, peers: Sequence[PeerView]) -> Verdict:
    """The most telling fact first: a different call explains whatever its caller did next, a death those who gave up."""
    by_rank = {peer.rank: peer for peer in peers}

    def refused(peer: PeerView) -> bool:
        """Did it make another call? Past this one it can only have gone by refusing it: the gate needs every rank."""
        if not me.at_gate or peer.number < me.number or 0 < peer.gave_up[0] <= me.number:
            return False
        return peer.number > me.number or peer.signature != me.signature

    def needed(peer: PeerView) -> bool:
        """Can the call not end without a further step of this peer?"""
        return peer.number < me.number or peer.rank == me.waiting_for

    if any(refused(peer) for peer in peers):
        return Disagree()
    for peer in peers:
        if peer.gone and needed(peer) and peer.gave_up[0] != me.number:
            return Gone(peer.rank, peer.gone)
    for peer in peers:
        number, blamed, reason = peer.gave_up
        if 0 < number <= me.number:
            if blamed in by_rank and by_rank[blamed].gone:
                return Gone(blamed, by_rank[blamed].gone)
            return Failed(peer.rank, reason)
    if me.overdue:
        absent = tuple(peer.rank for peer in peers if peer.number < me.number)
        return Late(absent or (me.waiting_for,))
    return Patience()
