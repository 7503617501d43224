"""The progress engine of a group: it moves the messages of all requests while a thread waits for one of them."""

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ...base.errors import NotInitialized, PeerFailed, WaitTimeout
from ...base.python import members, nap
from ...base.records import DepartureKind
from ...engine.mailbox import CarrierStreams, Mailbox, MessageRequest, Receive
from ...engine.process.nested import caller
from ...ranks.failures.stall import Stall
from ...ranks.group.abort import check_abort
from ...ranks.group.group import Group
from ...ranks.group.survivors import check_left_out
from .at_once import Result, use
from .peers import Peers, far_peers

_ALONE = " Only this rank itself can send that message: call isend() before, or send() in another thread."
_GRACE_S = 0.001  # how long the thread leaves a new request alone: mostly, its owner waits for it soon
_SLEEPS_S = 0.003  # a thread that has waited for this long sleeps; before, it spins or yields
_CHECK_PEERS_S = 0.1  # how often the thread looks whether peers are still there
_LAST_MESSAGES_S = 10.0
"""How long the end of a world waits until other hosts have received its messages: later, they are lost."""
_IDLE_S = 1.0  # the thread ends after _IDLE_S without a request


class _Pending(NamedTuple):
    """A request in the background. group: lives as long as the request does."""

    request: MessageRequest
    call: Callable[[], str]
    group: Group
    since: float


class ProgressEngine:
    """Starts, advances, awaits and cancels the requests of one group.

    Any waiting thread moves the messages of all requests of the group, then sleeps until a ring changes. While none
    waits, a thread of this object does so for the requests in the background. A lock lets one thread at a time use the
    mailbox; sleeping needs none. `call`, in all methods, makes the text that errors show.
    """

    def __init__(self, group: Group) -> None:
        self._group = weakref.ref(group)  # the group holds this: a cycle would leave both to the garbage collector
        engine, far = group.engine, far_peers(group)
        self._look_up_s = engine.config.look_up_s
        # Ranks that outnumber processors sleep at once: one that yields is behind processes that compute.
        self._patience_s = 0.0 if engine.most_spins or far else _SLEEPS_S
        self.mailbox = Mailbox(engine.arena, engine.heap, group.rank, engine.most_spins, group.named, far)
        self.peers, self._poller = Peers(self.mailbox), self.mailbox.poller
        if group.span is not None and group.parent is not None:
            with group.world.making:  # the end of the world's engine waits for the messages of all groups
                if group.world.progress_engine is None:
                    group.world.progress_engine = ProgressEngine(group.world)
        self._waiting: set[object] = set()
        """An object for each wait of a thread."""
        self._handed_over: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        """The requests that the thread has not taken over yet; None: it ends."""
        self._starting = threading.RLock()  # a signal handler may interrupt the holder, and make a call
        self._thread: threading.Thread | None = None
        _engines.add(self)

    @property
    def group(self) -> Group:
        """The group. Raises NotInitialized if the program has dropped it."""
        group = self._group()
        if group is None:
            raise NotInitialized("the group of this call was deleted. Call unisono.new_group() for a new one.")
        return group

    def start(self, request: MessageRequest) -> bool:
        """Start a request; True if it is done already. Raises OutOfMemory."""
        self._use(self.mailbox.submit, request)
        return request.done

    def advance(self, request: MessageRequest) -> bool:
        """Move messages of all requests until this one is done, or no bytes can move; True if it is done."""
        return self._use(self._advance, request)

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
        me = object()
        try:
            self._waiting.add(me)
            while True:
                wakeups = self._poller.wakeups
                if self.advance(request):
                    return
                now = time.monotonic()
                limit_s = min(self._look_up_s, max(0.0, began + allowed_s - now))
                changed = self._poller.wait(wakeups, now - changed_at + self._patience_s, limit_s)
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
            self._waiting.discard(me)
            if stall is not None:
                stall.end()

    def complete(
        self, *requests: MessageRequest, timeout_s: float | None = None, began: float = 0.0, text: str = "{}"
    ) -> None:
        """Start requests, and return when all are done. If this raises, they have been cancelled.

        Only the first may raise OutOfMemory: the others are receives. began: see `wait`. text: of the call, with places
        for the requests.
        """

        def call() -> str:
            return f"{text.format(*requests)} ({caller()})"

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
        """Let the thread finish a request."""
        group = self.group
        with self._starting:
            self._handed_over.put(_Pending(request, call, group, time.monotonic()))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"unisono messages of {group.name}", daemon=True)
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """After the group has been closed: let the thread fail the pending requests, then end it."""
        self.stop()
        self._leave_streams()

    def stop(self) -> None:
        """End the thread; requests that are still pending stay so, unless the group has been closed."""
        thread = self._thread
        self._handed_over.put(None)
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(_IDLE_S)  # it is not alive in a forked child

    def _leave_streams(self) -> None:
        """End the streams to other hosts. At the end of the world, wait until sent messages have been received."""
        group = self._group()
        if group is None or group.span is None:
            return
        with self.mailbox.lock:
            self.mailbox.leave()
        if group.parent is None:
            world, span, mine = group, group.span, group.engine.arena.board(group.rank).gone
            failed = mine is not None and mine.how in (DepartureKind.RAISED, DepartureKind.ABORTED)

            def gone(rank: int) -> bool:
                span.ask()
                return world.liveness.gone(rank) is not None

            span.resources[CarrierStreams].close(0.0 if failed else _LAST_MESSAGES_S, gone)

    def abandon(self, requests: Sequence[MessageRequest], call: str, error: BaseException | None = None) -> None:
        """Take requests out, unless they are done. error: what has interrupted a wait for them, which they tell.

        The thread finishes messages that have begun.
        """
        group = self.group
        if group.broken is not None or group.closed:
            return
        for request in requests:
            reason = None
            if error is not None:
                how = f"interrupted by {type(error).__name__}"
                reason = PeerFailed(group.rank, how, group.rank, call, group.named)
            rest = self._use(self.mailbox.withdraw, request, reason)
            if rest is not None:
                self.finish_in_background(rest, call.__str__)

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        pending: list[_Pending] = []
        changed_at = check_at = 0.0
        while self._take_over(pending):
            try:
                now = time.monotonic()
                if self._waiting or now - pending[0].since < _GRACE_S:
                    nap(pending[0].since, _GRACE_S, self._look_up_s)
                else:
                    wakeups = self._poller.wakeups
                    if self.advance(pending[0].request):
                        continue
                    if self._poller.wait(wakeups, now - changed_at + _SLEEPS_S, self._look_up_s):
                        changed_at = now
                if now > check_at:
                    check_at = now + _CHECK_PEERS_S
                    for k in range(len(pending)):  # a variable would hold the group
                        self.check_peers(pending[k].request, pending[k].call, awaited=False)
            except Exception as error:  # noqa: BLE001  the group cannot be used any more: all its requests fail
                _fail(pending, error)

    def _take_over(self, pending: list[_Pending]) -> bool:
        """Add the requests that are new, and take out those that are done. If there is none, wait for one; False: end
        the thread.
        """
        while True:
            pending[:] = [one for one in pending if not one.request.done]
            try:
                while (new := self._handed_over.get(not pending, _IDLE_S)) is not None:
                    pending.append(new)
            except queue.Empty:
                new = None
                if pending:
                    return True
                with self._starting:
                    if self._handed_over.empty():
                        self._thread = None
                        return False
            else:
                if pending and pending[0].group.closed:
                    _fail(
                        pending, NotInitialized("the group was closed before this call ended. Wait for the call first.")
                    )
                return False

    def check_peers(self, request: MessageRequest, call: Callable[[], str], *, awaited: bool = True) -> bool:
        """Fail a request with a PeerError if no rank that it needs can serve it any more; True if it is done.

        awaited: a thread waits for the request, and for nothing else. Otherwise this rank may still send the message
        that a receive waits for. Raises PeerFailed if the group has been aborted.
        """
        group = self.group
        if group.span is not None:
            group.span.ask()
            self._use(self.mailbox.listen_to_all)
        lost = self.peers.lost(request, group, awaited)
        check_abort(group, call)  # after the look: a peer that hears of it earlier gives up, or leaves
        if lost is None or self.advance(request):  # messages that a rank sent before it went can still be received
            return request.done
        check_left_out(group)
        self._use(self.mailbox.withdraw, request, self.peers.error(group, *lost, call()))
        return True

    def _use(self, action: Callable[..., Result], *arguments: Any) -> Result:
        """Use the mailbox, see `at_once.use`. Raises if the group cannot be used, before it takes a lock: a thread of
        the parent of a forked process may have held that lock.
        """
        group = self.group
        group.check_usable()
        return use(group, self.mailbox, action, *arguments)

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
        tags = {rank: self._use(self.mailbox.unexpected_tags, rank) for rank in ranks}
        sent = [f" Rank {rank} has sent tag {', '.join(map(str, tags[rank]))}." for rank in ranks if tags[rank]]
        return "".join([alone, *sent])


def _fail(pending: list[_Pending], error: Exception) -> None:
    """End requests of a group that cannot be used any more."""
    for request, _, group, _ in pending:
        if not request.done:
            request.done, request.error = True, group.broken or error
            request.tell()


def progress_engine(group: Group) -> ProgressEngine:
    """The progress engine of a group, made on the first call."""
    while not isinstance(engine := group.progress_engine, ProgressEngine):
        group.check_usable()
        with group.making:
            if group.progress_engine is None:
                made = ProgressEngine(group)
                if group.progress_engine is None:  # no signal handler has made one meanwhile
                    group.progress_engine, group.mailbox = made, made.mailbox
                    if group.broken is not None or group.closed:  # just now
                        group.mailbox = None
    return engine


_engines: weakref.WeakSet[ProgressEngine] = weakref.WeakSet()


def _stop_all() -> None:
    for engine in members(_engines):
        engine.stop()


atexit.register(_stop_all)  # a daemon thread must not touch shared memory while the interpreter shuts down
