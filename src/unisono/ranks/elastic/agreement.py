"""How the survivors of a group agree on one set of failed ranks. Pure: what a rank tells next, given what it sees.

Each member has one proposal, which it alone writes and all can read, also when it is stopped or has died. A rank tells
its proposal first and looks at the others' afterwards. So of two ranks that tell something at the same time at least
one sees what the other has told. Nothing here knows how proposals travel: all that counts is that a rank looks after
its own has arrived.

`next_proposal`: who had failed when a call did. A proposal grows until those who have made one agree; who comes later
finds what has been decided, even by a rank that has died since.

`next_to_shrink`: without whom a smaller group goes on. Here any rank may be stopped at any step, and be left out then.
So two things are apart. Proposals grow until all members of the smaller group have told the same one, and have its
memory: they are ready. That decides nothing: while a member is stopped and not ready, the proposals may grow again.
When all are ready, a ballot decides, for good: Paxos, where ranks read each other's votes in place of exchanging
messages (Eli Gafni and Leslie Lamport, Disk Paxos, 2003; with one disk). A rank needs no other one for its ballot: it
can be decided whoever is stopped, at whatever step, and never in two ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from ...base.records import Proposal


def next_proposal(mine: Proposal | None, others: Mapping[int, Proposal | None], gone: Set[int]) -> Proposal:
    """What a rank tells next of who had failed when a call did; the same as `mine`: it has to wait.

    It is decided when those agree who have made a proposal. mine: what the rank has told; None: nothing yet. others:
    what each other member has told. gone: the ranks that it sees to have gone.
    """
    told = [proposal for proposal in others.values() if proposal is not None]
    for proposal in told:
        if proposal.decided:
            return proposal
    failed = _union(gone, mine, told)
    if mine is None or failed != mine.failed:
        return Proposal(failed)
    return Proposal(failed, decided=all(one == mine for rank, one in others.items() if one and rank not in failed))


def next_to_shrink(
    me: int,
    mine: Proposal | None,
    others: Mapping[int, Proposal | None],
    out: Set[int],
    *,
    has_memory: bool,
    may_begin: bool,
) -> Proposal:
    """What rank `me` tells next while a group shrinks; the same as `mine`: it has to wait.

    out: the ranks that it sees to have gone, or wants to leave out. has_memory: does it have the memory of the group
    without those whom it has told to have failed? may_begin: may it begin a ballot? Any rank may at any time; but of
    ranks that all do so again and again none may come to an end.
    """
    told = [proposal for proposal in others.values() if proposal is not None]
    for proposal in (*told, mine):
        if proposal is not None and proposal.decided:
            return proposal
    failed = _union(out, mine, told)
    if mine is None:
        return Proposal(failed)
    if failed != mine.failed:
        return mine._replace(failed=failed, ready=False)
    members = [others[rank] for rank in others if rank not in failed]
    if members or me not in failed:  # where all are left out, they decide just that
        if me in failed or not agree(mine, members):
            return mine
        if not mine.ready:
            return mine._replace(ready=has_memory)
        if not all(member is not None and member.ready for member in members):
            return mine
    return _next_in_ballot(me, mine, told, len(others) + 1, may_begin=may_begin)


def agree(mine: Proposal, members: Iterable[Proposal | None]) -> bool:
    """Have all other members of the smaller group told what this one has?"""
    return all(member is not None and member.failed == mine.failed for member in members)


def _next_in_ballot(me: int, mine: Proposal, told: list[Proposal], size: int, *, may_begin: bool) -> Proposal:
    newest = max(mine.ballot, *(one.ballot for one in told)) if told else mine.ballot
    if mine.ballot < newest or not mine.ballot:
        return mine._replace(ballot=(newest // size + 1) * size + me) if may_begin else mine
    if mine.voted < mine.ballot:  # it may have been decided in an earlier ballot: then by the last vote that it sees
        last = max(mine, *told, key=lambda one: one.voted) if told else mine
        return mine._replace(voted=mine.ballot, choice=last.choice if last.voted else mine.failed)
    return Proposal(mine.choice, decided=True)


def _union(failed: Set[int], mine: Proposal | None, told: Iterable[Proposal]) -> frozenset[int]:
    return frozenset(failed).union(*(one.failed for one in told), mine.failed if mine else ())
