"""How long to sleep between two looks at what a carrier brings."""

from __future__ import annotations

import ctypes
import threading
import time

_PR_SET_TIMERSLACK = 29
_SLACK_NS = 1000
_thread = threading.local()


def nap(waited_s: float) -> None:
    """Sleep for a twentieth of the wait so far, at least 20 us and at most half a millisecond.

    The bytes are moved by others, often on this processor: who spins or yields is in their way.
    """
    if not hasattr(_thread, "exact"):
        # A thread's timers may be late by 50 us; this one's now by 1 us. A system that refuses it is only less prompt.
        _thread.exact = ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0) == 0
    time.sleep(min(max(waited_s / 20, 20e-6), 500e-6))
