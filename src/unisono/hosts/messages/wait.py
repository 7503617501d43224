"""How a rank waits for messages: it looks at memory, sleeps until another thread wakes it, or naps between looks."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

from ...engine.compile.program import LOOK_UP_SHARE, LOOK_UPS, PATIENCE_NS, WAITING, StateWord
from ...engine.mailbox.poller import Poller
from ..span import Span
from .tape_run import TapeRun

_LOOKS_S, _LOOKS_IN_CROWD_S = 1e-3, 20e-3
"""How long a rank looks for messages; it yields, then it naps between looks. After that, another thread waits, and
wakes the rank when they are there. If ranks and the threads of their carriers outnumber processors, the rank looks for
longer: each thread that has to run before it may first have to wait for a processor.
"""
_RESTS_S = 1.1e-9 * PATIENCE_NS
"""A rank that has waited for so long yields no more."""
_AGAIN_S, _AGAIN_SHARE = 300e-6, 30
"""A rank that sleeps wakes by itself, too, after a thirtieth of its wait so far, at least _AGAIN_S, and looks. Beside
processes that compute, the thread that would wake it may get a processor later than the rank does.
"""
_PR_SET_TIMERSLACK = 29
_SLACK_NS = 1000
_thread = threading.local()

Pause = Callable[[int, float, float], bool]
"""pause(rank, waited_s, most_s): wait for this rank, at most for most_s, after a wait of waited_s. False: no thread
would end this wait in time, so the caller naps.
"""

_LOOK_UP = int(StateWord.LOOK_UP_NS)


def until(
    missing: Callable[[], int | None], pause: Pause, words: memoryview, look: Callable[[], Iterable[int]]
) -> Iterator[int]:
    """Wait until no rank is missing. Yields WAITING | rank << 8 after LOOK_UP_NS, see `StateWord`, of waiting; later on
    after a longer stay each time, see LOOK_UPS.

    look: the outcomes by which this rank looks at its peers before that, if it must.
    """
    began = since = now = time.monotonic()
    while (rank := missing()) is not None:
        yield from look()
        look_up_s = words[_LOOK_UP] * 1e-9
        left_s = since + min(max(look_up_s, (now - began) / LOOK_UP_SHARE), LOOK_UPS * look_up_s) - now
        if left_s <= 0.0:
            yield WAITING | rank << 8
            since = now = time.monotonic()
            continue
        if not pause(rank, now - began, left_s):
            nap(now - began)
        now = time.monotonic()


def nap(waited_s: float) -> None:
    """Sleep for a twentieth of the wait so far, at least 20 us and at most half a millisecond.

    Other threads move the bytes, often on this processor: a rank that spins or yields would slow them down.
    """
    if not hasattr(_thread, "exact"):
        # A thread's timers may be late by 50 us; this one's now by 1 us. If the system refuses, naps only end later.
        _thread.exact = ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0) == 0
    time.sleep(_nap_s(waited_s))


def _nap_s(waited_s: float) -> float:
    return min(max(waited_s / 20, 20e-6), 500e-6)


class MessageWait:
    """The wait of one call for messages.

    span: of the group; it keeps one `Poller` for all calls.
    most_spins: see `Poller`.
    apart: has each rank a processor of its own, and one for its carrier's thread?
    rests: the rank yields to no other process, it naps from the start.
    """

    def __init__(self, span: Span, most_spins: int, *, apart: bool, rests: bool) -> None:
        self._span, self._most_spins, self._rests = span, most_spins if apart else 0, rests
        self._looks_s = _LOOKS_S if apart else _LOOKS_IN_CROWD_S
        self._news: SimpleQueue[None] = SimpleQueue()

    def pause(self, run: TapeRun, _: int, waited_s: float, most_s: float) -> bool:
        """Wait for news of a tape; see `Pause`."""
        carrier = self._span.carrier
        if carrier.wait is not None:  # no memory tells when a message has left, and it moves only meanwhile
            times = int(waited_s * 1e9), int(min(_nap_s(waited_s), most_s) * 1e9)
            carrier.wait(ctypes.addressof(self._span.news), self._span.seen.value + 1, 0, 0, *times)
            return True
        return (self._poll if waited_s < self._looks_s else self._sleep)(run, waited_s, most_s)

    def _poll(self, run: TapeRun, waited_s: float, most_s: float) -> bool:
        """Look at memory until there is news, or a rank of the world has gone; False if no thread would write there."""
        span, watched = self._span, run.watched
        poller: Poller | None = span.resources.get(Poller)
        if poller is None:
            counter = ctypes.addressof(span.news)
            poller = Poller(1, self._most_spins, counter=counter)
            span.resources[Poller] = poller
        if watched is None:
            return False
        poller.watch(0, *watched)
        waited_s = max(waited_s, _RESTS_S) if self._rests else waited_s
        return poller.wait(span.seen.value, waited_s, min(self._looks_s, most_s))

    def _sleep(self, run: TapeRun, waited_s: float, most_s: float) -> bool:
        """Sleep until there is news, or it is time to look again; False if no thread would wake this one."""
        news = self._news
        if not run.wake(lambda: news.put(None)):
            return False
        with suppress(Empty):
            news.get(timeout=min(max(waited_s / _AGAIN_SHARE, _AGAIN_S), most_s))
        return True
