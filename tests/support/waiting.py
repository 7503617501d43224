"""Wait for what will happen, in tests whose ranks meet at chosen moments."""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import TypeVar

from unisono.calls.dispatch.over_hosts.relay import Relay
from unisono.calls.work import _Latch
from unisono.engine.mailbox.poller import Poller
from unisono.hosts.carriers.ucx import UcxCarrier
from unisono.ranks.failures.attend import attend
from unisono.ranks.group.sub_groups import make_sub_group

T = TypeVar("T")
_PLACES = (attend, Poller.wait, UcxCarrier.run, UcxCarrier.wait, _Latch.wait, Relay.run, make_sub_group)
WAITS = frozenset(place.__code__ for place in _PLACES)  # where a thread is while it waits in a call


def until(condition: Callable[[], T], most_s: float = 60.0) -> T:
    """Wait for something that will happen, if the test does not fail; return what is true then."""
    end = time.monotonic() + most_s
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.0005)
    return found


def once(condition: Callable[[], bool], action: Callable[[], object]) -> None:
    """Do something in another thread, as soon as this is true."""

    def watch() -> None:
        until(condition)
        action()

    threading.Thread(target=watch).start()


def frames() -> dict[int, FrameType]:
    """The frame of each thread, by the thread's number.

    If garbage is collected meanwhile, its finalizers let other threads go on, and Python 3.11.7 then takes any object
    for a frame.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


def once_waiting(action: Callable[[], object], places: Iterable[CodeType] = WAITS) -> None:
    """Do something in another thread, as soon as this one waits in a call, at one of these places."""
    me, places = threading.get_ident(), frozenset(places)
    once(lambda: frames()[me].f_code in places, action)
