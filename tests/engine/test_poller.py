"""Words that are watched: their memory stays for as long as a thread may read it."""

from __future__ import annotations

import threading
import weakref

import numpy as np

from tests.support.waiting import until
from unisono.engine.mailbox.poller import Poller


def test_memory_that_is_watched_no_more_stays_while_a_thread_waits() -> None:
    poller, memory = Poller(1, most_spins=0), np.zeros(1, np.int64)
    gone = weakref.ref(memory)
    poller.watch(0, memory.ctypes.data, poller.zero, memory)
    thread = threading.Thread(target=poller.wait, args=(poller.wakeups, 0.0, 20.0))
    thread.start()
    until(lambda: bool(poller._waiting))
    del memory
    poller.unwatch(0)
    assert gone() is not None
    poller.wake()
    thread.join()
    poller.unwatch(0)
    assert gone() is None


def test_a_thread_that_waits_later_does_not_keep_it() -> None:
    poller, memory = Poller(2, most_spins=0), [np.zeros(1, np.int64) for _ in range(2)]
    gone = [weakref.ref(one) for one in memory]
    for slot in (0, 1):
        poller.watch(slot, memory[slot].ctypes.data, poller.zero, memory[slot])
    poller.unwatch(0)
    thread = threading.Thread(target=poller.wait, args=(poller.wakeups, 0.0, 20.0))
    thread.start()
    until(lambda: bool(poller._waiting))
    memory.clear()
    poller.unwatch(1)
    assert [ref() is None for ref in gone] == [True, False]
    poller.wake()
    thread.join()
