"""How the survivors of a group agree which ranks a smaller group leaves out. Pure: a rank's next proposal, given what
it sees.

Each member has one proposal. It alone writes it; all members can read it, also when its owner is stopped or has died. A
rank first writes its own proposal, then reads the others'. So of two ranks that write at the same time, at least one
sees the other's proposal. This file does not know how proposals travel. It only needs that a rank reads after its own
proposal has arrived.

Any rank may be stopped at any step, and is left out then. So there are two phases. First, proposals grow until all
members of the smaller group have the same proposal, and the group's memory: they are ready. This decides nothing: while
a member is stopped and not ready, proposals may grow again. When all are ready, a ballot decides for good: Paxos, where
ranks read each other's votes instead of exchanging messages (Eli Gafni and Leslie Lamport, Disk Paxos, 2003; with one
disk). A rank needs no other rank for its ballot. So a decision is possible whichever ranks are stopped, at any step,
and there is never a second one.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from ...base.records import Proposal


def next_proposal(
    me: int,
    mine: Proposal | None,
    others: Mapping[int, Proposal | None],
    out: Set[int],
    *,
    has_memory: bool,
    may_begin: bool,
) -> Proposal:
    """The next proposal of rank `me` while a group shrinks. If it equals `mine`, the rank has to wait.

    mine: its present proposal; None: it has made none yet.
    others: the proposal of each other member.
    out: the ranks that it sees to have gone, or wants to leave out.
    has_memory: does it have the memory of the group without the failed ranks of `mine`?
    may_begin: may it begin a ballot? Any rank may at any time, but if all ranks keep beginning ballots, none may end.
    """
    told = [proposal for proposal in others.values() if proposal is not None]
    for proposal in (*told, mine):
        if proposal is not None and proposal.decided:
            return proposal
    failed = frozenset(out).union(*(one.failed for one in told), mine.failed if mine else ())
    if mine is None:
        return Proposal(failed)
    if failed != mine.failed:
        return mine._replace(failed=failed, ready=False)
    members = [others[rank] for rank in others if rank not in failed]
    if members or me not in failed:  # if all are left out, this is their decision
        if me in failed or not agree(mine, others):
            return mine
        if not mine.ready:
            return mine._replace(ready=has_memory)
        if not all(member is not None and member.ready for member in members):
            return mine
    return _next_in_ballot(me, mine, told, len(others) + 1, may_begin=may_begin)


def agree(mine: Proposal, others: Mapping[int, Proposal | None]) -> bool:
    """Have all other members of the smaller group made the same proposal?"""
    return all(one is not None and one.failed == mine.failed for rank, one in others.items() if rank not in mine.failed)


def _next_in_ballot(me: int, mine: Proposal, told: list[Proposal], size: int, *, may_begin: bool) -> Proposal:
    newest = max(mine.ballot, *(one.ballot for one in told)) if told else mine.ballot
    if mine.ballot < newest or not mine.ballot:
        return mine._replace(ballot=(newest // size + 1) * size + me) if may_begin else mine
    if mine.voted < mine.ballot:  # an earlier ballot may have decided: then by the latest vote
        last = max(mine, *told, key=lambda one: one.voted) if told else mine
        return mine._replace(voted=mine.ballot, choice=last.choice if last.voted else mine.failed)
    return Proposal(mine.choice, decided=True)
