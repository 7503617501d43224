"""What a waiting rank concludes from what it sees of its peers: a pure function, without clocks, files or processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..records import Departure, GivenUp

__all__ = ["Disagree", "Failed", "Gone", "Late", "Patience", "PeerView", "Situation", "Verdict", "judge"]


@dataclass(frozen=True)
class PeerView:
    """A peer as seen now.

    number: of the latest call it entered. signature: with which it entered the call that this rank is in; 0: it has
    not, or no longer stands by it. gone: how it has gone, if it has. gave_up: the call it gave up.
    """

    rank: int
    number: int
    signature: int
    gone: Departure | None = None
    gave_up: GivenUp = GivenUp()  # noqa: RUF009  it is immutable


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
    how: Departure


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
    """Decide by the most telling fact: another call explains what its caller did next, a death those who gave up."""
    by_rank = {peer.rank: peer for peer in peers}

    def refused(peer: PeerView) -> bool:
        """Did it make another call in place of this one? (One that made this call may already be in the next.)"""
        if not me.at_gate or peer.number < me.number or 0 < peer.gave_up.number <= me.number:
            return False
        return peer.signature != me.signature

    def needed(peer: PeerView) -> bool:
        """Can the call not end without a further step of this peer?"""
        return peer.number < me.number or peer.rank == me.waiting_for

    if any(refused(peer) for peer in peers):
        return Disagree()
    for peer in peers:
        if peer.gone and needed(peer) and peer.gave_up.number != me.number:
            return Gone(peer.rank, peer.gone)
    for peer in peers:
        given_up = peer.gave_up
        if 0 < given_up.number <= me.number:
            for blamed in sorted(given_up.blames):
                if blamed in by_rank and (how := by_rank[blamed].gone):
                    return Gone(blamed, how)
            # Who waits for the same ranks in the same call runs out of time with the first that does.
            if given_up.late and given_up.number == me.number and all(rank in by_rank for rank in given_up.blames):
                return Late(tuple(sorted(given_up.blames)))
            return Failed(peer.rank, given_up.reason)
    if me.overdue:
        absent = tuple(peer.rank for peer in peers if peer.number < me.number)
        return Late(absent or (me.waiting_for,))
    return Patience()
