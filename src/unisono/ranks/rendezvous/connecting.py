"""Connect to the ranks of other hosts. If one of them ends meanwhile, or on Ctrl-C, stop.

An engine notices neither while it connects. So one thread connects, and the caller's thread looks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...base.errors import InternalError, PeerFailed, PeerGone, WaitTimeout
from ...base.records import DepartureKind
from ...engine.carrier import Carrier, Lost
from .meeting_result import MeetingResult

if TYPE_CHECKING:
    from ...hosts.far import Far

_LOOK_S = 0.02
_CAUSE_S = 1.0
"""How long to look for the reason of a failed connection, after the time for which hosts may be silent: sentinels need
this long at most.
"""


def connect(make: Callable[[], Carrier], far: Far, met: MeetingResult, rank: int, deadline: float) -> Carrier:
    """The carrier that `make` connects to all other ranks by the deadline.

    Raises PeerGone if a rank has ended meanwhile, or given up; WaitTimeout if a rank does not come; PeerFailed if a
    connection cannot be made.
    """
    attempt, began = _Attempt(make), time.monotonic()
    try:
        while not attempt.over.wait(_LOOK_S):
            _check_peers(far, met, rank)
        until = time.monotonic() + far.silent_s + _CAUSE_S
        while attempt.made is None and time.monotonic() < until:  # the connection breaks before a sentinel says why
            _check_peers(far, met, rank)
            time.sleep(_LOOK_S)
    except BaseException:
        attempt.abandon()
        raise
    if attempt.made is not None:
        return attempt.made
    try:
        raise attempt.error
    except Lost as lost:
        if time.monotonic() > deadline:
            details, waited_s = f" It cannot be reached: {lost.reason}.", time.monotonic() - began
            raise WaitTimeout("init()", waited_s, (lost.peer,), rank, details) from lost
        raise PeerFailed(lost.peer, f"cannot be reached: {lost.reason}", rank, "init()") from lost
    except RuntimeError as error:  # the engine's error
        raise PeerFailed(rank, f"cannot connect to other hosts: {error}", rank, "init()") from error


def _check_peers(far: Far, met: MeetingResult, rank: int) -> None:
    """Raise PeerGone for a rank that has failed. A rank that has ended well had connected before."""
    for peer in range(met.hosts.ranks):
        how = far.left(peer) if peer != rank else None
        if how is not None and how.how in (DepartureKind.RAISED, DepartureKind.DIED):
            identity = (met.identities or {}).get(peer)
            raise PeerGone(
                peer, identity.pid if identity else met.arena.board(peer).pid, how, rank, "init()", met=False
            )


class _Attempt:
    """A carrier that a thread makes. over: the thread has ended. made, error: its result or exception."""

    def __init__(self, make: Callable[[], Carrier]) -> None:
        self._make, self.over, self._lock, self._abandoned = make, threading.Event(), threading.Lock(), False
        self.made: Carrier | None = None
        self.error: BaseException = InternalError("a connection to other hosts has neither been made nor failed")
        threading.Thread(target=self._run, name="unisono connects to other hosts", daemon=True).start()

    def _run(self) -> None:
        try:
            made = self._make()
            with self._lock:
                if self._abandoned:
                    made.abort()
                else:
                    self.made = made
        except BaseException as error:  # noqa: BLE001  raised in the thread that waits for it
            self.error = error
        self.over.set()

    def abandon(self) -> None:
        """No thread waits for the carrier any more: close it once it is made."""
        with self._lock:
            self._abandoned = True
            if self.made is not None:
                self.made.abort()
