"""`Transfer`: an `isend` or `irecv`, which goes on while no thread waits for it."""

from typing import Any

import torch

from ...base.errors import UnisonoError
from ...base.units import seconds
from ...engine.mailbox import MessageRequest, Receive
from ...engine.process.nested import caller
from ...ranks.group.group import Group
from ..work import FinishedWork, Work
from .at_once import received_soon
from .progress_engine import progress_engine


class Transfer(Work[torch.Tensor]):
    """An `isend` or `irecv`. Do not use its tensor until `wait` has returned.

    It goes on while no thread waits for it, but not beyond the end of this rank's function or program: so wait for it.
    A dropped Transfer does not delay this end.
    """

    def __init__(self, group: Group, request: MessageRequest, timeout_s: float | None) -> None:
        super().__init__("a message")
        self._engine = engine = progress_engine(group)
        self._request, self._timeout_s, self._rank, self._where = request, timeout_s, group.rank, ""
        request.on_done = self._on_done
        if not engine.start(request):
            self._where = caller()
            try:
                engine.finish_in_background(request, self._call_text)
            except BaseException as error:  # such as RuntimeError: can't start new thread
                self._interrupted(error)
                raise

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the tensor may change (isend) or has been written (irecv). Returns True, or raises the error.

        timeout: seconds from now; None: the call's timeout_s. WaitTimeout after that, while the call goes on. Ctrl-C
        cancels the call, as it does with `send` and `recv`.
        """
        limit_s = self._timeout_s if timeout is None else seconds(timeout, "timeout")
        if not self._done.is_set():
            request, engine = self._request, self._engine
            try:
                if isinstance(request, Receive):
                    place = request.tensor, request.peer, engine.group, request.tag
                    if received_soon(*place, limit_s, request) is True:
                        request.tell()
                        return True
                engine.wait(request, self._call_text, limit_s)
                request.tell()  # unless another thread was interrupted before it did so
            except UnisonoError:
                raise
            except BaseException as error:
                self._interrupted(error)
                raise
        return super().wait()

    def is_completed(self) -> bool:
        """Has the call ended, with or without an error?"""
        if not self._done.is_set():
            try:
                if self._engine.advance(self._request):
                    self._request.tell()
            except UnisonoError:  # the group has ended; its thread tells this request soon
                return False
        return self._done.is_set()

    def get_future(self) -> torch.futures.Future[Any]:
        """As `Work.get_future`; it is complete if the message has come."""
        self.is_completed()
        return super().get_future()

    def source_rank(self) -> int:
        """The rank that sent the message; waits for it."""
        self.wait()
        request = self._request
        return request.source if isinstance(request, Receive) else self._rank

    def _interrupted(self, error: BaseException) -> None:
        self._engine.abandon([self._request], self._call_text(), error)

    def _call_text(self) -> str:
        return f"i{self._request} ({self._where})"

    def _on_done(self) -> None:
        request = self._request
        self._finish(request.error, request.tensor if isinstance(request, Receive) else None)


class FinishedTransfer(FinishedWork[torch.Tensor], Transfer):
    """An `isend` that was over when it returned. rank: this rank."""

    def __init__(self, rank: int) -> None:
        super().__init__(None)
        self._rank = rank

    def source_rank(self) -> int:
        return self._rank
