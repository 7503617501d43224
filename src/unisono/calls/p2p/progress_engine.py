"""The progress engine of a group: it moves the messages of all requests while a thread waits for one of them."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch

from ...base.errors import NotInitialized, OutOfMemory, PeerError, PeerFailed, WaitTimeout
from ...base.python import members
from ...base.records import DepartureKind
from ...engine.mailbox import CarrierStreams, Mailbox, MessageRequest, Receive
from ...engine.process.nested import check_nested, holds
from ...ranks.failures.stall import Stall
from ...ranks.group.abort import check_abort
from ...ranks.group.group import Group
from ...ranks.group.survivors import check_left_out
from .at_once import stop
from .peers import Peers, far_peers

Result = TypeVar("Result")

_ALONE = " Only this rank itself can send that message: call isend() before, or send() in another thread."
_GRACE_S = 0.001  # how long the thread leaves a new request alone: mostly, its owner waits for it soon
_WAITED_S = 0.003  # the thread naps like a caller that has waited for _WAITED_S: for a tenth of a millisecond at first
_CHECK_PEERS_S = 0.1  # how often the thread looks whether peers are still there
_LAST_MESSAGES_S = 10.0
"""How long the end of a world waits until other hosts have received its messages: later, they are lost."""
_IDLE_S = 1.0  # the thread ends after _IDLE_S without a request


class ProgressEngine:
    """Starts, advances, awaits and cancels the requests of one group.

    Any waiting thread moves the messages of all requests of the group, then sleeps until a ring changes. A thread of
    this object does so while there are requests for which no thread waits. A lock lets one thread at a time use the
    mailbox; sleeping needs none. `call`, in all methods, makes the text that errors show.
    """

    def __init__(self, group: Group) -> None:
        self._group = weakref.ref(group)  # the group holds this: a cycle would leave both to the garbage collector
        self._world_ranks, host = group.named, group.host
        self._look_up_s = host.config.look_up_s
        far = far_peers(group)
        self.mailbox = Mailbox(host.arena, host.heap, group.rank, host.most_spins, self._world_ranks, far)
        self.peers, self._poller = Peers(self.mailbox), self.mailbox.poller
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

    @property
    def group(self) -> Group:
        """The group. Raises NotInitialized if the program has dropped it."""
        group = self._group()
        if group is None:
            raise NotInitialized("the group of this call has been dropped; call unisono.new_group() for a new one")
        return group

    def start(self, request: MessageRequest) -> bool:
        """Start a request; True if it is done already. Raises OutOfMemory."""
        self._locked(self.mailbox.submit, request)
        return request.done

    def advance(self, request: MessageRequest) -> bool:
        """Move messages of all requests until this one is done, or no bytes can move; True if it is done."""
        return self._locked(self._advance, request)

    def fail(self, request: MessageRequest, error: PeerError) -> MessageRequest | None:
        """End a request with an error, unless it is done; see `Mailbox.cancel` for what is returned."""
        return self._locked(self.mailbox.fail, request, error)

    def wait(
        self, request: MessageRequest, call: Callable[[], str], timeout_s: float | None = None, began: float = 0.0
    ) -> None:
        """Return when a request is done. Raises WaitTimeout after timeout_s (None: the group's) and lets it go on.

        began: when the call has begun to wait, by the monotonic clock; 0: now.
        """
        began = changed_at = began or time.monotonic()
        allowed_s = self.group.timeout_s if timeout_s is None else timeout_s
        check_at = began + self._look_up_s
        stall: Stall | None = None
        try:
            while True:
                wakeups = self._poller.wakeups
                if self.advance(request):
                    return
                now = time.monotonic()
                limit_s = min(self._look_up_s, max(0.0, began + allowed_s - now))
                changed = self._poller.wait(wakeups, now - changed_at, limit_s)
                now = time.monotonic()
                if changed:
                    changed_at = now
                if now > check_at or now - began >= allowed_s:
                    check_at = now + self._look_up_s
                    if self.check_peers(request, call):
                        return
                    stall = stall or Stall(self.group, call(), any_of=True)
                    needed = self.peers.needed(request, self.group)
                    if now - began >= allowed_s:
                        raise stall.late(needed, now - began, self._said(request, needed))
                    stall.look(needed, now - began)
        except PeerFailed as error:
            if not error.call:  # another thread of this rank has aborted the group: the error is for all its calls
                check_abort(self.group, call)
            raise
        finally:
            if stall is not None:
                stall.end()

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
            self.abandon(waiting, call())
            if not (isinstance(error, WaitTimeout) and all(request.done for request in waiting)):  # done just now
                raise
        for request in requests:
            if request.error is not None:
                raise request.error

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

    def abandon(self, requests: Sequence[MessageRequest], call: str, error: BaseException | None = None) -> None:
        """Take requests out, unless they are done. error: what has interrupted a wait for them, which they tell.

        The thread finishes messages that have begun.
        """
        group = self.group
        if group.broken is not None or group.closed:
            return
        for request in requests:
            if error is None:
                rest = self._locked(self.mailbox.cancel, request)
            else:
                how = f"interrupted by {type(error).__name__}"
                rest = self.fail(request, PeerFailed(group.rank, how, group.rank, call, self._world_ranks))
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

    def check_peers(self, request: MessageRequest, call: Callable[[], str], *, awaited: bool = True) -> bool:
        """Fail a request with a PeerError if no rank that it needs can serve it any more; True if it is done.

        awaited: a thread waits for the request, and for nothing else. Otherwise this rank may still send the message
        that a receive waits for. Raises PeerFailed if the group has been aborted.
        """
        group = self.group
        if group.span is not None:
            group.span.ask()
            self._locked(self.mailbox.listen_to_all)
        lost = self.peers.lost(request, group, awaited)
        check_abort(group, call)  # after the look: a peer that hears of it earlier gives up, or leaves
        if lost is None or self.advance(request):  # messages that a rank sent before it went can still be received
            return request.done
        check_left_out(group)
        self.fail(request, self.peers.error(group, *lost, call()))
        return True

    def _locked(self, action: Callable[..., Result], *arguments: Any) -> Result:
        """Use the mailbox, then call `on_done` of the requests that have finished meanwhile."""
        result, finished = self._use(action, *arguments)
        for done in finished:
            if done.on_done is not None:
                on_done, done.on_done = done.on_done, None
                on_done()
        return result

    @holds("mailbox")
    def _use(self, action: Callable[..., Result], *arguments: Any) -> tuple[Result, list[MessageRequest]]:
        """Use the mailbox. Returns the requests that have finished meanwhile, too."""
        group, mailbox = self.group, self.mailbox
        if mailbox.lock.locked():
            check_nested(mailbox, f"the messages of {group}")
        with mailbox.lock:
            group.check_usable()
            try:
                mailbox.settle()
                result = action(*arguments)
            except OutOfMemory:
                raise  # before anything has moved
            except BaseException as error:
                stop(group, error)
                raise
            finished, mailbox.finished = mailbox.finished, []
        return result, finished

    def _advance(self, request: MessageRequest) -> bool:
        while not request.done and self.mailbox.progress():
            pass
        return request.done

    def _said(self, request: MessageRequest, ranks: Sequence[int]) -> str:
        """Text: messages of these ranks that a receive does not take. ranks: empty if only this rank can send one."""
        if not isinstance(request, Receive):
            return ""
        alone = "" if ranks else _ALONE
        ranks = ranks or [self.group.rank]
        tags = {rank: self._locked(self.mailbox.unexpected_tags, rank) for rank in ranks}
        sent = [f" Rank {rank} has sent tag {', '.join(map(str, tags[rank]))}." for rank in ranks if tags[rank]]
        return "".join([alone, *sent])


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
