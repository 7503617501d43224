"""The desk of a group's post office: who waits here moves what can be moved, for everybody, and then watches for news.

The mailbox is for one thread at a time; watching needs no lock.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

from ..engine.mailbox import ANY, Mailbox, Receive, Request, Send
from ..errors import NotInitialized, OutOfMemory, PeerFailed, PeerGone, WaitTimeout
from ..membership.group import Group
from ..records import Departure
from ..watch.gone import gone

__all__ = ["Desk"]

Result = TypeVar("Result")


class Desk:
    """Where the requests of one group are handed in, waited for and withdrawn."""

    def __init__(self, group: Group) -> None:
        self._group = weakref.ref(group)  # which holds this: a cycle would leave it to the garbage collector
        self._world_ranks = group.world_ranks if group.parent is not None else ()
        arena, config = group.host.arena, group.host.config
        self.look_up_s = config.look_up_s
        spins = config.spins if arena.neighbours <= len(os.sched_getaffinity(0)) else 0
        self._mailbox = Mailbox(arena, group.host.heap, group.rank, spins, self._world_ranks)
        self.news = self._mailbox.news
        self._lock = threading.Lock()

    @property
    def group(self) -> Group:
        """The group. Raises NotInitialized where nobody holds it any more."""
        group = self._group()
        if group is None:
            raise NotInitialized("the group of this call has been dropped; call unisono.new_group() for a new one")
        return group

    def submit(self, request: Request) -> bool:
        """Begin with a request. Is it over already?"""
        self._alone(self._mailbox.submit, request)
        return request.done

    def advance(self, request: Request) -> bool:
        """Move what can be moved at once, until the request is over. Is it?"""
        return self._alone(self._advance, request)

    def withdraw(self, request: Request) -> Send | None:
        """Take a request back that is not over; what must go on nevertheless is returned, see `Mailbox.withdraw`."""
        return self._alone(self._mailbox.withdraw, request)

    def wait(self, request: Request, call: Callable[[], str], allowed_s: float) -> None:
        """Return when the request is over. Raises WaitTimeout, and the request goes on.

        call: what to name it in errors, with its line.
        """
        began = news_at = time.monotonic()
        look_at = began + self.look_up_s
        while True:
            turn = self.news.turn
            if self.advance(request):
                return
            now = time.monotonic()
            limit_s = min(self.look_up_s, max(0.0, began + allowed_s - now))
            changed = self.news.wait(turn, now - news_at, limit_s)
            now = time.monotonic()
            if changed:
                news_at = now
            if now > look_at or not changed:
                look_at = now + self.look_up_s
                if self.look(request, call):
                    return
                if now - began >= allowed_s:
                    raise self._overdue(request, call(), now - began)

    def look(self, request: Request, call: Callable[[], str]) -> bool:
        """Look whether the ranks that the request needs are still there, and end it if not. Is it over?"""
        group = self.group
        group.check_usable()
        lost = self._lost(request, group)
        # What a rank sent before it went is still to be had.
        if lost is None or self.advance(request):
            return request.done
        rank, how = lost
        pid = group.host.arena.board(rank).pid
        error = PeerGone(rank, pid, how, group.rank, call(), self._world_ranks, others=True)
        self._alone(lambda request: self._mailbox.fail(request, error), request)
        return True

    def _alone(self, action: Callable[[Request], Result], request: Request) -> Result:
        """Do something with the mailbox, and tell the owners of what that has finished."""
        group = self.group
        with self._lock:
            group.check_usable()
            try:
                result = action(request)
            except OutOfMemory:
                raise  # before anything has moved
            except BaseException as error:
                # Such as Ctrl-C within a step: a message may be half in Python, half in its ring.
                how = f"stopped moving messages ({type(error).__name__})"
                call = "a point-to-point call"
                group.break_off(PeerFailed(group.rank, how, group.rank, call, self._world_ranks))
                raise
            finished, self._mailbox.finished = self._mailbox.finished, []
        for over in finished:
            if over.then is not None:
                then, over.then = over.then, None
                then()
        return result

    def _advance(self, request: Request) -> bool:
        while not request.done and self._mailbox.progress():
            pass
        return request.done

    def _awaited(self, request: Request, group: Group) -> list[int]:
        """The peers whom the request needs; several: any of them."""
        message = request.message if isinstance(request, Receive) else None
        if message is not None:
            return [message.source]
        ranks = range(group.size) if request.peer == ANY else [request.peer]
        return [rank for rank in ranks if rank != group.rank]

    def _lost(self, request: Request, group: Group) -> tuple[int, Departure] | None:
        """The rank for whose sake the request cannot be met, and how it is gone.

        Of several, that is one that did not go in good order, or the first when all are gone.
        """
        ranks = self._awaited(request, group)
        went = [(rank, how) for rank in ranks if (how := gone(group, rank)) is not None]
        for rank, how in went:
            if len(went) == len(ranks) or not how.in_order:
                return rank, how
        return None

    def _overdue(self, request: Request, call: str, waited_s: float) -> WaitTimeout:
        group = self.group
        ranks, details = self._awaited(request, group), ""
        if isinstance(request, Receive):
            tags = self._alone(lambda _: {rank: self._mailbox.tags(rank) for rank in ranks}, request)
            sent = [f" Rank {rank} has sent tag {', '.join(map(str, tags[rank]))}." for rank in ranks if tags[rank]]
            details = "".join(sent)
        return WaitTimeout(call, waited_s, ranks, group.rank, details, self._world_ranks)
