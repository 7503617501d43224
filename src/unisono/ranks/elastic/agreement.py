"""How the survivors of a group agree on one set of failed ranks. Pure: what a rank tells next, given what it sees.

Each member has one proposal, which it alone writes and all can read; it only grows, until it is decided. A rank tells
its proposal first and looks at the others' afterwards. So of two ranks that propose at the same time at least one sees
the other's, and waits until both are equal; and who comes later finds what has been decided, even by a rank that has
died since. Nothing here knows how proposals travel: all that counts is that a rank looks after its own has arrived.
`tests/ranks/elastic/test_agreement.py` goes through all interleavings of few ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from ...base.records import Proposal


def next_proposal(
    mine: Proposal | None, others: Mapping[int, Proposal | None], gone: Set[int], *, of_all: bool
) -> Proposal:
    """What a rank tells next; the same as `mine`: it has to wait.

    mine: what it has told; None: nothing yet. others: what each other member has told. gone: the ranks that it sees to
    have gone, or wants to leave out. of_all: decide when all who are there have made a proposal; otherwise, when those
    agree who have made one.
    """
    told = [proposal for proposal in others.values() if proposal is not None]
    for proposal in told:
        if proposal.decided:
            return proposal
    failed = frozenset(gone).union(*(proposal.failed for proposal in told), mine.failed if mine else ())
    if mine is None or failed != mine.failed:
        return Proposal(failed)
    waits_for = (rank for rank in others if rank not in failed and (of_all or others[rank] is not None))
    return Proposal(failed, decided=all(others[rank] == mine for rank in waits_for))
