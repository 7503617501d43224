"""Asynchronous point-to-point calls: a Work that whoever waits for it helps along."""

from __future__ import annotations

from collections.abc import Callable

from ..engine.mailbox import Receive, Request
from ..errors import UnisonoError
from ..membership.group import Group
from ..watch import caller
from ..work import Work
from .office import post_office

__all__ = ["Transfer"]


class Transfer(Work):
    """A message on its way, from `isend` or `irecv`. Its tensor must be left alone until `wait` has returned.

    A call goes on while nobody waits for it, but not beyond the end of this rank's function or program: wait for it.
    One that is forgotten holds nothing up.
    """

    def __init__(self, group: Group, request: Request, words: Callable[[], str], timeout_s: float | None) -> None:
        super().__init__("a message")
        self._office = office = post_office(group)
        self._request, self._timeout_s, self._rank = request, timeout_s, group.rank
        self._words, self._where = words, ""
        request.then = self._over
        if not office.begin(request):
            self._where = caller()
            office.leave_to_thread(request, self._text)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the tensor may change (isend) or has come (irecv); returns True, or raises what went wrong.

        timeout: seconds to wait from now; None: the call's timeout_s. WaitTimeout after that, while the call goes on.
        """
        if not self._done.is_set():
            self._office.wait(self._request, self._text, self._timeout_s if timeout is None else timeout)
        return super().wait()

    def is_completed(self) -> bool:
        """Has the call ended, well or not?"""
        if not self._done.is_set():
            try:
                self._office.desk.advance(self._request)
            except UnisonoError:  # the group is over; the call hears of it soon
                return False
        return self._done.is_set()

    def source_rank(self) -> int:
        """The rank that sent the message; waits for it."""
        self.wait()
        request = self._request
        return request.source if isinstance(request, Receive) else self._rank

    def _text(self) -> str:
        return f"{self._words()} ({self._where})"

    def _over(self) -> None:
        request = self._request
        self._office.forget(request)
        self._finish(request.error, request.tensor if isinstance(request, Receive) else None)
