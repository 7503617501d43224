"""The waits of a call over several hosts: for ranks of this host and of others, who are watched meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from ....base.errors import MismatchError, PeerError, PeerFailed, PeerGone, WaitTimeout
from ....engine.carrier import Lost
from ....engine.logs.clock import read_cycles
from ....engine.mailbox.poller import Poller
from ....hosts.messages import Exchange, nap
from ....ranks.failures.attend import Watch, caller
from ....ranks.failures.verdict import Gone, PeerView
from ....ranks.group.group import Group
from .hosts_plan import SpanPlan

if TYPE_CHECKING:
    from ....hosts.span import Span

_STALE_S = 2.0
"""Where a host does not answer for so long, a rank looks all the same: its own time may be up."""
_LOOKS_S = 1e-3
"""How long a rank looks for short messages; for longer ones another thread waits, and wakes it when they are there. At
once where the carriers' threads need the processors of those who look."""
_POLLED = 4
"""At how many messages it looks; each rank has one under way in each piece of a vector."""
_ARRIVES_S = 10.0
"""How long messages of a rank that has left after this call may take."""
_CAUSE_S = 2.5
"""How long a rank whose part has failed looks for the cause, beyond the time for which hosts may be silent: the cause
may be on another host, and that a host is lost is told some time after its messages have ended.
"""


class _SpanWatch(Watch):
    """Watches the ranks of all hosts; until this host's ranks have entered, others are not compared with them.

    For a rank that raised a MismatchError because of another host would not take part in what its own host does first.
    """

    trusts_far = True
    """Has this host still to enter?"""
    is_fresh = False
    """Have all hosts told what their ranks had written when this wait had begun?"""

    def __init__(self, group: Group, plan: SpanPlan, where: str) -> None:
        super().__init__(group, plan, where)
        self.left_at: dict[int, float] = {}

    def view(self, rank: int) -> PeerView:
        """A peer as seen now."""
        seen = super().view(rank)
        span = self.group.span
        if span is None or rank in span.here:
            return seen
        if seen.gone is not None and seen.gone.in_order and not self.is_fresh:
            # It has made its calls before it left: that it has left the world may be known here, and its calls not yet.
            seen = replace(seen, gone=None)
        if seen.number < self.number:
            return seen
        if seen.gone is not None and seen.gone.in_order and self.host.has_ended(rank):
            left_at = self.left_at.setdefault(rank, time.monotonic())
            if time.monotonic() < left_at + _ARRIVES_S:
                seen = replace(seen, gone=None)  # what it has sent in this call is on its way
        if not self.trusts_far:
            return seen
        return PeerView(rank, seen.number, self.plan.signature, seen.gone, seen.gave_up)

    def gone(self, verdict: Gone, allowed_s: float) -> PeerGone:
        """The error that all survivors raise."""
        error, span = super().gone(verdict, allowed_s), self.group.span
        if span is None:
            return error
        how = span.explain(error.how)
        named = error.world_ranks
        return PeerGone(error.rank, error.pid, how, error.waiting, error.call, named, failed=error.failed)


class SpanWait:
    """The waits of one call. all_entered_here: all ranks of this host have entered it."""

    def __init__(self, group: Group, span: Span, plan: SpanPlan, allowed_s: float, where: str | None) -> None:
        self._group, self._span, self._plan, self._allowed_s, self._where = group, span, plan, allowed_s, where
        self.all_entered_here = False
        self._looks_s = _LOOKS_S if group.host.processors_for_carriers else 0.0
        if span.carrier.wait is not None:
            self._looks_s = math.inf
        self._watching: _SpanWatch | None = None
        self._news: SimpleQueue[None] | None = None
        self._waited_s = 0.0
        self._judged = False

    @property
    def watch(self) -> _SpanWatch:
        """Made when a wait takes long, or the call fails."""
        if self._watching is None:
            self._watching = _SpanWatch(self._group, self._plan, self._where or caller())
        return self._watching

    def end(self) -> None:
        """The call is over."""
        if self._watching is not None:
            self._watching.stall.end()

    def check(self) -> None:
        """Raise if a rank of this group has gone. In calls that are made in no time, nobody waits, and nobody looks."""
        for _ in range(2):  # who has gone is seen twice
            self._look(self._group.rank, lambda: self._group.rank, fresh=False)

    def until_here(self, done: Callable[[], int | None], word: int) -> None:
        """Wait for ranks of this host until `done` names none any more that is missing.

        word: of the control line of a rank, which is at least the number of this call when it is not missing.
        """

        def pause(missing: int, waited_s: float, most_s: float) -> bool:
            return self._group.host.wait_for(missing, word, waited_s, most_s) and done() != missing

        self._until(done, pause)

    def until_far(self, done: Callable[[], int | None], exchanges: Sequence[Exchange]) -> None:
        """Wait for messages of other hosts until `done` names no rank any more whose message is missing.

        exchanges: they are missing in these. Ranks of other hosts are judged by fresh words only.
        """

        def pause(_: int, waited_s: float, most_s: float) -> bool:
            began, first = read_cycles(), next((exchange for exchange in exchanges if not exchange.done), None)
            heard = (
                self._poll(exchanges, waited_s, most_s) if waited_s < self._looks_s else self._sleep(exchanges, most_s)
            )
            if first is not None:
                first.write_down(began)
            return heard

        self._until(done, pause)

    def _until(self, done: Callable[[], int | None], pause: Callable[[int, float, float], bool]) -> None:
        """pause: wait for this rank, after so long a wait, for so long at most; False: nobody would tell."""
        missing = done()
        if missing is None:
            return
        began = looked_at = now = time.monotonic()
        every_s, ticket = self._group.host.config.look_up_s, 0
        while missing is not None:
            if not ticket and now >= looked_at + every_s:
                ticket = self._span.ask()
            if ticket and (self._span.far.fresh(ticket) or now >= looked_at + _STALE_S):
                # Time in which this rank itself was stopped does not count.
                self._waited_s += min(now - looked_at, _STALE_S)
                fresh, looked_at, ticket = self._span.far.answered(ticket), now, 0
                self._look(missing, done, fresh=fresh)
            if not pause(missing, now - began, every_s):
                nap(now - began)
            missing, now = done(), time.monotonic()

    def _poll(self, exchanges: Iterable[Exchange], waited_s: float, most_s: float) -> bool:
        """Look at memory until there is news of one of them; False if nobody would write there."""
        poller: Poller | None = self._span.resources.get(Poller)
        if poller is None:
            poller = Poller(_POLLED, self._group.host.most_spins, carrier=self._span.carrier.wait)
            self._span.resources[Poller] = poller
        watched = [pair for exchange in exchanges if (pair := exchange.watched)][:_POLLED]
        for slot in range(_POLLED):
            poller.watch(slot, *(watched[slot] if slot < len(watched) else (poller.zero, poller.zero)))
        return bool(watched) and poller.wait(poller.wakeups, waited_s, min(self._looks_s, most_s))

    def _sleep(self, exchanges: Iterable[Exchange], most_s: float) -> bool:
        """Sleep until there is news of one of them, or for so long; False if nobody would tell."""
        news = self._news = self._news or SimpleQueue()
        told = [exchange.wake(lambda: news.put(None)) for exchange in exchanges if exchange.is_under_way]
        if not told or not all(told):
            return False
        with suppress(Empty):
            news.get(timeout=most_s)
        return True

    def _look(self, missing: int, done: Callable[[], int | None], *, fresh: bool) -> None:
        self.watch.trusts_far, self.watch.is_fresh = not self.all_entered_here, fresh
        try:
            self.watch.look(missing, self._waited_s, self._allowed_s)
        except BaseException as error:
            if isinstance(error, MismatchError) and done() is None:
                return  # all that this rank waits for have made this call meanwhile
            self._judged = True
            raise

    def cause(self, error: BaseException) -> BaseException:
        """Why a part of the call has failed. What a rank meets first often follows from what happened elsewhere."""
        if self._judged or not isinstance(error, PeerError | WaitTimeout | Lost):
            return error
        if isinstance(error, PeerFailed) and error.whole:  # its ranks are those of the group that was aborted
            return error
        suspect, waited_s = self._suspect(error), 2 * self._allowed_s if isinstance(error, WaitTimeout) else 0.0
        if suspect is None:
            return error
        until = time.monotonic() + self._span.far.silent_s + _CAUSE_S
        while time.monotonic() < until:
            try:
                self.watch.is_fresh = self._span.refresh(until)
                self.watch.trusts_far = False
                self.watch.look(suspect, waited_s, self._allowed_s)
            except (PeerError, WaitTimeout) as cause:
                return cause
            nap(1.0)
        named = self._group.world_ranks if self._group.parent else ()
        reason = error.reason if isinstance(error, Lost) else " ".join(str(error).split())
        return PeerFailed(suspect, f"cannot go on: {reason}", self._group.rank, self.watch.call, named)

    def _suspect(self, error: PeerError | WaitTimeout | Lost) -> int | None:
        """The rank of this group that an error in a part of the call is about; None: it names none of this host."""
        if isinstance(error, Lost):
            return self._group.world_ranks.index(error.peer)
        seats = error.missing if isinstance(error, WaitTimeout) else (getattr(error, "rank", 0),)
        return next((self._span.here[seat] for seat in seats if seat < len(self._span.here)), None)
