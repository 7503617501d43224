"""What a waiting rank concludes from what it sees of its peers: a pure function, without clocks, files or processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Disagree", "Failed", "Gone", "Late", "Patience", "PeerView", "Situation", "Verdict", "judge"]


@dataclass(frozen=True)
class PeerView:
    """A peer as seen now.

    number: of the latest call it entered. signature: with which it entered the call that this rank is in; 0: it has
    not, or no longer stands by it. gone: why it will not come, or "". gave_up: number of the call it gave up, or 0;
    blames: the ranks it waited for; late: because they did not come in time, not because they are gone; reason: in
    words.
    """

    rank: int
    number: int
    signature: int
    gone: str = ""
    gave_up: int = 0
    blames: tuple[int, ...] = ()
    late: bool = False
    reason: str = ""


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
    """The most telling fact first: another call explains whatever its caller did next, a death those who gave up."""
    by_rank = {peer.rank: peer for peer in peers}

    def refused(peer: PeerView) -> bool:
        """Did it make another call in place of this one? (One that made this call may already be in the next.)"""
        if not me.at_gate or peer.number < me.number or 0 < peer.gave_up <= me.number:
            return False
        return peer.signature != me.signature

    def needed(peer: PeerView) -> bool:
        """Can the call not end without a further step of this peer?"""
        return peer.number < me.number or peer.rank == me.waiting_for

    if any(refused(peer) for peer in peers):
        return Disagree()
    for peer in peers:
        if peer.gone and needed(peer) and peer.gave_up != me.number:
            return Gone(peer.rank, peer.gone)
    for peer in peers:
        if 0 < peer.gave_up <= me.number:
            for blamed in peer.blames:
                if blamed in by_rank and by_rank[blamed].gone:
                    return Gone(blamed, by_rank[blamed].gone)
            # Who waits for the same ranks in the same call runs out of time with the first that does.
            if peer.late and peer.gave_up == me.number and all(rank in by_rank for rank in peer.blames):
                return Late(peer.blames)
            return Failed(peer.rank, peer.reason)
    if me.overdue:
        absent = tuple(peer.rank for peer in peers if peer.number < me.number)
        return Late(absent or (me.waiting_for,))
    return Patience()
