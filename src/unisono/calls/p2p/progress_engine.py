"""The progress engine of a group: the progress loop, and a thread that runs it for requests that no thread awaits."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from ...base.errors import PeerFailed, UnisonoError, WaitTimeout
from ...base.python import members
from ...base.records import DepartureKind
from ...base.units import seconds
from ...engine.mailbox import CarrierStreams, MessageRequest, Receive
from ...engine.process.nested import caller
from ...ranks.group.abort import check_abort
from ...ranks.group.group import Group
from ..work import FinishedWork, Work
from .at_once import completed_soon, postpone
from .progress import ProgressLoop

_GRACE_S = 0.001  # how long the thread leaves a new request alone: mostly, its owner waits for it soon
_WAITED_S = 0.003  # the thread naps like a caller that has waited for _WAITED_S: for a tenth of a millisecond at first
_CHECK_PEERS_S = 0.1  # how often the thread looks whether peers are still there
_LAST_MESSAGES_S = 10.0
"""How long the end of a world waits until other hosts have received its messages: later, they are lost."""
_IDLE_S = 1.0  # the thread ends after _IDLE_S without a request


class ProgressEngine(ProgressLoop):
    """What the point-to-point calls of one group share. The thread runs only while requests are pending."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        if group.span is not None and group.world.progress_engine is None and group.parent is not None:
            group.world.progress_engine = ProgressEngine(group.world)  # its end waits for the messages of all groups
        # Requests without a waiting thread, with their calls, and the group, which lives as long as they do.
        self._pending: dict[MessageRequest, tuple[Callable[[], str], Group]] = {}
        self._pending_lock = threading.RLock()  # a signal handler may interrupt the holder, and make a call
        self._no_news = threading.Lock()
        """Held while there is nothing new for the thread. (An Event hangs if a signal handler sets it within `set`.)"""
        self._no_news.acquire()
        self._thread: threading.Thread | None = None
        self._stopped = self._looks = False
        """_looks: the thread looks at the pending requests again soon, though nothing wakes it."""
        _engines.add(self)

    def complete(
        self, requests: Sequence[MessageRequest], call: Callable[[], str], timeout_s: float | None, began: float = 0.0
    ) -> None:
        """Start requests, and return when all are done. If this raises, they have been cancelled.

        Only the first may raise OutOfMemory: the others are receives. began: see `wait`.
        """
        waiting = [request for request in requests if not self.start(request)]
        try:
            for request in waiting:
                self.wait(request, call, timeout_s, began)
        except BaseException as error:
            self.cancel_all(waiting, call())
            if not (isinstance(error, WaitTimeout) and all(request.done for request in waiting)):  # done just now
                raise
        for request in requests:
            if request.error is not None:
                raise request.error

    def begin(self, request: MessageRequest) -> bool:
        """Start a request and move all bytes that can move now; True if it is done already."""
        return self.start(request) or self.advance(request)

    def finish_in_background(self, request: MessageRequest, call: Callable[[], str]) -> None:
        """Let the thread finish a request. Its `on_done` must call `discard`."""
        with self._pending_lock:
            if request.done:
                return
            group = self.group
            self._pending[request] = call, group
            if not self._looks:
                self._wake()
            if self._thread is None:
                name = f"unisono messages of {group.name}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                thread.start()
                self._thread = thread

    def discard(self, request: MessageRequest) -> None:
        """Take a request that is done from the thread."""
        with self._pending_lock:
            self._pending.pop(request, None)

    def close(self) -> None:
        """After the group has been closed: let the thread fail the pending requests, then end it."""
        until = time.monotonic() + _IDLE_S
        while self._all_pending() and threading.current_thread() is not self._thread and time.monotonic() < until:
            time.sleep(0.001)
        self.stop()
        self._leave_streams()

    def stop(self) -> None:
        """End the thread; requests that are still pending stay so."""
        self._stopped = True
        thread = self._thread
        if thread is not None and thread.is_alive():  # it is not in a forked child
            self._wake()
            thread.join(_IDLE_S)

    def _leave_streams(self) -> None:
        """End the streams to other hosts. At the end of the world, wait until sent messages have been received."""
        group = self._group()
        if group is None or group.span is None:
            return
        with self.mailbox.lock:
            self.mailbox.leave()
        if group.parent is None:
            world, span, mine = group, group.span, group.host.arena.board(group.rank).gone
            failed = mine is not None and mine.how in (DepartureKind.RAISED, DepartureKind.ABORTED)

            def gone(rank: int) -> bool:
                span.ask()
                return world.liveness.gone(rank) is not None

            span.resources[CarrierStreams].close(0.0 if failed else _LAST_MESSAGES_S, gone)

    def leave_to_parent(self) -> None:
        """In a forked child: make new locks, because a lock that a thread of the parent held is never released here."""
        self.mailbox.lock, self._pending_lock, self._thread = threading.Lock(), threading.RLock(), None

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the lock has been released already
            self._no_news.release()

    def interrupted(self, request: MessageRequest, call: str, error: BaseException) -> None:
        """Cancel a request after an exception, such as Ctrl-C, has ended its wait."""
        group = self.group
        if group.broken is None and not group.closed:
            how = f"interrupted by {type(error).__name__}"
            rest = self.fail(request, PeerFailed(group.rank, how, group.rank, call, self._world_ranks))
            self._finish_rest(rest, call)

    def cancel_all(self, requests: Sequence[MessageRequest], call: str) -> None:
        """Take requests out, unless they are done."""
        group = self.group
        if group.broken is None and not group.closed:
            for request in requests:
                self._finish_rest(self.cancel(request), call)

    def _finish_rest(self, rest: MessageRequest | None, call: str) -> None:
        """Let the thread finish a message that was cancelled after it had begun."""
        if rest is not None:
            rest.on_done = partial(self.discard, rest)
            self.finish_in_background(rest, call.__str__)

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        while not self._stopped:
            news = self._looks or self._no_news.acquire(timeout=_IDLE_S)
            self._looks = True
            while (before := self._all_pending()) and not self._stopped:
                time.sleep(_GRACE_S)
                if not before.keys().isdisjoint(self._all_pending()):
                    self._finish_pending()
            with self._pending_lock:
                self._looks = bool(self._pending)
                if not self._pending and not news:
                    self._thread = None
                    return

    def _finish_pending(self) -> None:
        changed_at = look_at = check_at = time.monotonic()
        try:
            while (pending := self._all_pending()) and not self._stopped:
                wakeups = self._poller.wakeups
                if self.advance(next(iter(pending))):
                    continue
                now = time.monotonic()
                if self._poller.wait(wakeups, now - changed_at + _WAITED_S, self._look_up_s):
                    changed_at = now
                if now > look_at:
                    look_at = now + self._look_up_s
                    check_abort(self.group, str)
                if now > check_at:
                    check_at = now + _CHECK_PEERS_S
                    for request, (call, _) in pending.items():
                        self.check_peers(request, call, awaited=False)
        except Exception as error:  # noqa: BLE001  the group cannot be used any more: all its requests fail
            for request, (_, group) in self._all_pending().items():
                if not request.done:
                    request.done, request.error = True, group.broken or error
                    if request.on_done is not None:
                        request.on_done()

    def _all_pending(self) -> dict[MessageRequest, tuple[Callable[[], str], Group]]:
        with self._pending_lock:
            return dict(self._pending)


def progress_engine(group: Group) -> ProgressEngine:
    """The progress engine of a group, made on the first call."""
    engine = group.progress_engine
    if not isinstance(engine, ProgressEngine):
        with _making:
            group.check_usable()
            engine = group.progress_engine
            if not isinstance(engine, ProgressEngine):
                made = ProgressEngine(group)
                engine = group.progress_engine
                if not isinstance(engine, ProgressEngine):  # no signal handler has made one meanwhile
                    engine = group.progress_engine = made
                    group.mailbox = made.mailbox
                    if group.broken is not None or group.closed:  # just now
                        group.mailbox = None
    return engine


_making = threading.RLock()
_engines: weakref.WeakSet[ProgressEngine] = weakref.WeakSet()


def _in_child() -> None:
    global _making  # noqa: PLW0603  see `leave_to_parent`
    _making = threading.RLock()
    for engine in members(_engines):
        engine.leave_to_parent()


os.register_at_fork(after_in_child=_in_child)


def _stop_all() -> None:
    for engine in members(_engines):
        engine.stop()


atexit.register(_stop_all)  # a daemon thread must not touch shared memory while the interpreter shuts down


class Transfer(Work[torch.Tensor]):
    """An `isend` or `irecv`. Its tensor must be left alone until `wait` has returned.

    It goes on while no thread waits for it, but not beyond the end of this rank's function or program: so wait for it.
    A dropped Transfer does not delay this end.
    """

    def __init__(
        self,
        group: Group,
        request: MessageRequest,
        text: Callable[[], str],
        timeout_s: float | None,
        *,
        later: Receive | None = None,
    ) -> None:
        super().__init__("a message")
        self._engine = engine = progress_engine(group)
        self._request, self._timeout_s, self._rank = request, timeout_s, group.rank
        self._text, self._where = text, ""
        request.on_done, self._later = self._on_done, later
        if later is not None:
            postpone(later, group, engine.mailbox)
        if later is not None or not engine.begin(request):
            self._where = caller()
            try:
                engine.finish_in_background(request, self._call_text)
            except BaseException:  # such as RuntimeError: can't start new thread
                engine.cancel_all([request], self._call_text())
                raise

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the tensor may change (isend) or has been written (irecv). Returns True, or raises the error.

        timeout: seconds from now; None: the call's timeout_s. WaitTimeout after that, while the call goes on. Ctrl-C
        cancels the call, as it does with `send` and `recv`.
        """
        limit_s = self._timeout_s if timeout is None else seconds(timeout, "timeout")
        if not self._done.is_set():
            engine, later = self._engine, self._later
            try:
                if later is not None and completed_soon(later, engine.group, engine.mailbox, limit_s):
                    later.on_done = None
                    self._on_done()
                    return True
                engine.wait(self._request, self._call_text, limit_s)
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
                self._engine.advance(self._request)
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
        self._engine.interrupted(self._request, self._call_text(), error)

    def _call_text(self) -> str:
        return f"{self._text()} ({self._where})"

    def _on_done(self) -> None:
        request = self._request
        self._engine.discard(request)
        self._finish(request.error, request.tensor if isinstance(request, Receive) else None)


class FinishedTransfer(FinishedWork[torch.Tensor], Transfer):
    """An `isend` that was over when it returned. rank: this rank."""

    def __init__(self, rank: int) -> None:
        super().__init__(None)
        self._rank = rank

    def source_rank(self) -> int:
        return self._rank
