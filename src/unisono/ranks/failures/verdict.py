"""`judge`, a pure function: what a waiting rank does, given what it sees of its peers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...base.records import Departure, GivenUp


class PeerView(NamedTuple):
    """A peer as a waiting rank sees it.

    number: the number of the latest call that it entered.
    signature: its signature of this rank's call; 0 if it has not entered this call, or has withdrawn it.
    gone: how it has gone; None if it is there.
    gave_up: the call that it gave up.
    owes: it has gone without finishing this call over several hosts. Ranks that wait for it hold up other ranks, which
    may wait for long messages of theirs.
    """

    rank: int
    number: int
    signature: int
    gone: Departure | None = None
    gave_up: GivenUp = GivenUp()
    owes: bool = False


class Situation(NamedTuple):
    """A waiting rank: its call's number and signature, and the rank that it waits for.

    at_gate: it has not passed the gate, so ranks may still disagree.
    overdue: its time is up.
    """

    number: int
    signature: int
    waiting_for: int
    at_gate: bool
    overdue: bool


class Disagree(NamedTuple):
    """The ranks made different calls."""


class Gone(NamedTuple):
    """This peer has gone, and the call needs it. sure: words and messages of the peer under way cannot change this."""

    rank: int
    how: Departure
    sure: bool = False


class Failed(NamedTuple):
    """This peer gave the call up. unseen: it blames a rank that, as far as this rank sees, has not gone or given up."""

    rank: int
    reason: str
    unseen: bool = False


class Late(NamedTuple):
    """Time is up, and these ranks are missing."""

    missing: tuple[int, ...]


Verdict = Disagree | Gone | Failed | Late


def judge(me: Situation, peers: Sequence[PeerView]) -> Verdict | None:
    """Decide by the first cause, in this order: a mismatch, a rank that has gone, a call given up, a timeout.

    None: nothing is wrong, so the rank keeps waiting. Ranks often give up, or go, because of a cause that is earlier in
    this order.
    """
    by_rank = {peer.rank: peer for peer in peers}

    def refused(peer: PeerView) -> bool:
        """Did it make another call instead of this one? (A peer that made this call may already be in the next.)"""
        if not me.at_gate or peer.number < me.number or 0 < peer.gave_up.number <= me.number:
            return False
        return peer.signature != me.signature

    # No rank passes the gate of a call before all ranks have entered it.
    open_gate = all(peer.number >= me.number for peer in peers)

    def needed(peer: PeerView) -> bool:
        """Does the call need a further step of this peer?"""
        return not open_gate or peer.rank == me.waiting_for or peer.owes

    if any(refused(peer) for peer in peers):
        return Disagree()
    for peer in peers:
        if peer.gone and needed(peer) and peer.gave_up.number != me.number:
            return Gone(peer.rank, peer.gone, sure=peer.owes)
    for peer in peers:
        given_up = peer.gave_up
        if 0 < given_up.number <= me.number:
            first = _first(peer, by_rank)
            blames = sorted((given_up.blames | first.gave_up.blames) & by_rank.keys())
            for blamed in (by_rank[rank] for rank in blames):
                if blamed.gone and blamed.gave_up.number != me.number:
                    return Gone(blamed.rank, blamed.gone)
            # The peer timed out in this call, in which it waited for ranks that this rank waits for, too.
            if given_up.late and given_up.number == me.number and all(rank in by_rank for rank in given_up.blames):
                return Late(tuple(sorted(given_up.blames)))
            causes = [by_rank[rank] for rank in first.gave_up.blames & by_rank.keys()]
            seen = first.gave_up.late or all(cause.gone or cause.gave_up.number for cause in causes)
            return Failed(first.rank, first.gave_up.reason, unseen=not seen)
    if me.overdue:
        absent = tuple(peer.rank for peer in peers if peer.number < me.number)
        return Late(absent or (me.waiting_for,))
    return None


def _first(peer: PeerView, by_rank: Mapping[int, PeerView]) -> PeerView:
    """The peer that caused this one, perhaps through others, to give the call up."""
    seen = {peer.rank}
    while True:
        blamed = [by_rank[rank] for rank in sorted(peer.gave_up.blames - seen) if rank in by_rank]
        causes = [other for other in blamed if 0 < other.gave_up.number <= peer.gave_up.number]
        if not causes:
            return peer
        peer = causes[0]
        seen.add(peer.rank)
