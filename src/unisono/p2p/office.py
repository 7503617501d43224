"""A group's post office: calls that wait at its desk, and a thread behind it for those that do not wait."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import torch

from ..engine.mailbox import Request
from ..errors import WaitTimeout
from ..membership.group import Group
from .desk import Desk

__all__ = ["PostOffice", "post_office"]

_GRACE_S = 0.001
"""A new request is left to its owner for so long, who mostly waits for it soon."""
_PATIENT_S = 0.003
"""The thread watches as one who has waited for so long: it naps a tenth of a millisecond, and longer in time."""
_LOOK_S = 0.1
"""How often the thread looks after the peers."""
_LINGER_S = 1.0
"""The thread stays for so long without anything to do."""


class PostOffice:
    """What the point-to-point calls of one group share."""

    def __init__(self, group: Group) -> None:
        self.desk = Desk(group)
        # The requests that nobody may be waiting for, with their calls, and their group, which lives as long as they.
        self._pending: dict[Request, tuple[Callable[[], str], Group]] = {}
        self._some = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False
        _offices.add(self)

    def complete(self, requests: Sequence[Request], call: Callable[[], str], timeout_s: float | None) -> None:
        """Make requests, and return when they are over. Where this raises, they are withdrawn.

        Only the first may need memory for a ring.
        """
        waiting = [request for request in requests if not self.desk.submit(request)]
        try:
            for request in waiting:
                self.wait(request, call, timeout_s)
        except BaseException as error:
            self._withdraw(waiting, call())
            if not (isinstance(error, WaitTimeout) and all(request.done for request in waiting)):  # they came just now
                raise
        for request in requests:
            if request.error is not None:
                raise request.error

    def begin(self, request: Request) -> bool:
        """Make a request, and move what can be moved at once. Is it over already?"""
        return self.desk.submit(request) or self.desk.advance(request)

    def wait(self, request: Request, call: Callable[[], str], timeout_s: float | None) -> None:
        """Return when the request is over. Raises WaitTimeout after timeout_s, or the group's; it goes on."""
        self.desk.wait(request, call, self.desk.group.timeout_s if timeout_s is None else timeout_s)

    def forget(self, request: Request) -> None:
        """The request is over."""
        with self._lock:
            self._pending.pop(request, None)

    def close(self) -> None:
        """The group is closed: let the thread tell whoever waits, and end."""
        until = time.monotonic() + _LINGER_S
        while self._all_pending() and threading.current_thread() is not self._thread and time.monotonic() < until:
            time.sleep(0.001)
        self.stop()

    def stop(self) -> None:
        """End the thread; what it has not finished stays as it is."""
        self._stopped = True
        thread = self._thread
        if thread is not None and thread.is_alive():  # in a forked child it is not
            self._some.set()
            thread.join(_LINGER_S)

    def _withdraw(self, requests: Sequence[Request], call: str) -> None:
        group = self.desk.group
        if group.broken is None and not group.closed:
            for request in requests:
                rest = self.desk.withdraw(request)
                if rest is not None:
                    rest.then = partial(self.forget, rest)
                    self.leave_to_thread(rest, call.__str__)

    def leave_to_thread(self, request: Request, call: Callable[[], str]) -> None:
        """Let a request go on while nobody waits for it. Whoever hears that it is over calls `forget`."""
        with self._lock:
            if request.done:
                return
            group = self.desk.group
            self._pending[request] = call, group
            self._some.set()
            if self._thread is None:
                name = f"unisono messages of {group.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        while not self._stopped:
            if self._some.wait(_LINGER_S):
                time.sleep(_GRACE_S)
                self._attend()
            with self._lock:
                if not self._pending:
                    if not self._some.is_set():
                        self._thread = None
                        return
                    self._some.clear()

    def _attend(self) -> None:
        """Move messages until no request is pending."""
        desk = self.desk
        news_at = look_at = time.monotonic()
        try:
            while (pending := self._all_pending()) and not self._stopped:
                turn = desk.news.turn
                if desk.advance(next(iter(pending))):  # which moves what it can for the others, too
                    continue
                now = time.monotonic()
                if desk.news.wait(turn, now - news_at + _PATIENT_S, desk.look_up_s):
                    news_at = now
                if now > look_at:
                    look_at = now + _LOOK_S
                    for request, (call, _) in pending.items():
                        desk.look(request, call)
        except Exception as error:  # noqa: BLE001  the group is over: its calls hear why
            for request, (_, group) in self._all_pending().items():
                if not request.done:
                    request.done, request.error = True, group.broken or error
                    if request.then is not None:
                        request.then()

    def _all_pending(self) -> dict[Request, tuple[Callable[[], str], Group]]:
        with self._lock:
            return dict(self._pending)


def post_office(group: Group) -> PostOffice:
    """The post office of a group, made when it is first needed."""
    office: PostOffice | None = group.mailbox
    if office is None:
        with _making:
            group.check_usable()
            office = group.mailbox = group.mailbox or PostOffice(group)
    return office


_making = threading.Lock()
_offices: weakref.WeakSet[PostOffice] = weakref.WeakSet()


def _stop_all() -> None:
    for office in list(_offices):
        office.stop()


atexit.register(_stop_all)  # a daemon thread must not touch shared memory while the interpreter goes
