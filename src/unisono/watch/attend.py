"""What happens when a kernel comes back unfinished: look around, then go on waiting or raise.

The kernel waits for some hundredths of a second at most before it returns here. Python then handles signals (Ctrl-C),
looks at every peer and lets `judge` decide.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping

import torch

from ..engine.bind import Plan
from ..engine.interpret import DONE
from ..errors import MismatchError, PeerFailed, PeerGone, UnisonoError, WaitTimeout
from ..membership.group import Group
from ..units import seconds
from .gone import gone
from .verdict import Disagree, Failed, Gone, Late, PeerView, Situation, judge

__all__ = ["attend", "caller", "interrupted", "odd_ones"]

_INSIDE = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(torch.__file__) + os.sep,
)
"""Whose lines are no user's: those of this package, and of torch, which may call it."""
_COLLECT_S = 1.0
"""How long a rank waits for the others' side of a disagreement before it raises without them."""


def caller() -> str:
    """The line outside this package and torch that made the current call, as file:line."""
    frame = sys._getframe(1)  # noqa: SLF001  the documented way to look at one's callers
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def attend(
    group: Group, plan: Plan, resume: Callable[[], int], status: int, timeout_s: float | None, where: str
) -> None:
    """Bring a call that stopped with this status to its end.

    resume goes on with the kernel. Raises MismatchError, PeerGone, PeerFailed or WaitTimeout; all but the first leave
    the group broken, because the ranks may be at different points of the call.
    """
    started = time.monotonic()
    allowed = seconds(group.timeout_s if timeout_s is None else timeout_s)
    watch = _Watch(group, plan, where)
    try:
        while status != DONE:
            watch.look(status >> 8, time.monotonic() - started, allowed)
            status = resume()
    except MismatchError:
        group.host.skip_call()
        raise
    except BaseException as error:
        watch.give_up(error)
        raise


def interrupted(group: Group, plan: Plan, error: BaseException, where: str) -> None:
    """Give up a call that Ctrl-C ended where nobody attended to it: just behind the kernel's return."""
    if group.broken is None and group.host.unfinished:
        _Watch(group, plan, where).give_up(error)


class _Watch:
    """One rank's look at its peers during one call."""

    def __init__(self, group: Group, plan: Plan, where: str) -> None:
        self.group, self.host, self.plan, self.where = group, group.host, plan, where
        self.number = group.host.call_number
        of, self.world_ranks = (f" of group {group.name!r}", group.world_ranks) if group.parent else ("", ())
        self.call = f"{plan.call} #{self.number}{of} ({where})"
        self.board = self.host.arena.board(group.rank)
        self.told = False
        self.seen_gone: set[int] = set()

    def look(self, waiting_for: int, waited_s: float, allowed_s: float) -> None:
        """Raise if the call cannot end well."""
        if not self.told:
            self.board.set_call(self.number, f"{self.plan.call}, {self.plan.details}", self.where)
            self.told = True
        me = Situation(
            self.number, self.plan.signature, waiting_for, self.host.at_gate(self.plan), waited_s > allowed_s
        )
        verdict = judge(me, self.peers())
        if isinstance(verdict, Gone):
            if verdict.rank not in self.seen_gone:
                self.seen_gone.add(verdict.rank)
                return  # what it did before it went counts: let the kernel look once more
            board = self.host.arena.board(verdict.rank)
            raise PeerGone(verdict.rank, board.pid, verdict.how, self.group.rank, self.call, self.world_ranks)
        if isinstance(verdict, Failed):
            raise PeerFailed(verdict.rank, verdict.reason, self.group.rank, self.call, self.world_ranks)
        if isinstance(verdict, Disagree):
            raise self.mismatch()
        if isinstance(verdict, Late):
            details = self.last_calls(verdict.missing)
            raise WaitTimeout(self.call, waited_s, verdict.missing, self.group.rank, details, self.world_ranks)

    def peers(self) -> list[PeerView]:
        views = []
        for rank in range(self.group.size):
            if rank == self.group.rank:
                continue
            number, signature = self.host.entered(rank), self.host.signature(rank, self.number)
            board = self.host.arena.board(rank)
            gave_up, text = board.gave_up
            blamed, _, reason = text.partition("\n")
            late = reason.startswith(WaitTimeout.__name__)
            ranks = tuple(map(int, blamed.split()))
            views.append(PeerView(rank, number, signature, gone(self.group, rank), gave_up, ranks, late, reason))
        return views

    def mismatch(self) -> MismatchError:
        """Gather what every rank called; wait a little for those that have not noticed yet."""
        until = time.monotonic() + _COLLECT_S
        mine = (f"{self.plan.call}, {self.plan.details}", self.where)
        while True:
            calls = {self.group.rank: mine}
            for rank in range(self.group.size):
                call = self.host.arena.board(rank).call(self.number)
                if rank != self.group.rank and call:
                    calls[rank] = call
            if len(calls) == self.group.size or time.monotonic() > until:
                break
            time.sleep(0.002)
        if len({call for call, _ in calls.values()}) == 1:  # yet the tables behind the name, or the knobs, differ
            signatures = {rank: self.host.signature(rank, self.number) for rank in calls}
            signatures[self.group.rank] = self.plan.signature
            calls = {
                rank: (f"{call}, table and configuration {signatures[rank]:08x}", where)
                for rank, (call, where) in calls.items()
            }
        for rank in range(self.group.size):
            calls.setdefault(rank, ("another call, of which it has told nothing yet", ""))
        return MismatchError(self.number, calls, odd_ones(calls), self.world_ranks)

    def last_calls(self, missing: tuple[int, ...]) -> str:
        """How far the missing ranks have come."""
        said = []
        for rank in missing:
            number = self.host.entered(rank)
            board = self.host.arena.board(rank)
            at = "has made no call yet" if not number else f"has last made call #{number} of this group"
            said.append(f" Rank {rank} (pid {board.pid or 'unknown'}) {at}.")
        return "".join(said)

    def give_up(self, error: BaseException) -> None:
        """Tell the others, and end the group."""
        blamed: tuple[int, ...] = ()
        if isinstance(error, PeerGone):
            blamed = (error.rank,)
        elif isinstance(error, WaitTimeout):
            blamed = error.missing
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, PeerFailed) and error.rank == self.group.rank:  # the group was abandoned from outside
            reason = error.reason
        self.board.set_gave_up(self.number, f"{' '.join(map(str, blamed))}\n{reason}")
        self.host.sign_off(self.plan)
        if not isinstance(error, UnisonoError):
            how = f"interrupted by {type(error).__name__}"
            error = PeerFailed(self.group.rank, how, self.group.rank, self.call, self.world_ranks)
        self.group.break_off(error)


def odd_ones(calls: Mapping[int, tuple[str, str]]) -> list[int]:
    """The ranks that differ from the most common call; of two equally common ones, rank 0's counts."""
    common: dict[str, int] = {}
    for rank in sorted(calls):
        common[calls[rank][0]] = common.get(calls[rank][0], 0) + 1
    usual = max(common, key=lambda call: common[call])
    return [rank for rank in sorted(calls) if calls[rank][0] != usual]
