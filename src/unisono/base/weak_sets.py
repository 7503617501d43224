"""Members of a weak set that other threads add to."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar
from weakref import WeakSet

_Member = TypeVar("_Member")


def members(weak: WeakSet[_Member]) -> list[_Member]:
    """The members that are still there. Other threads may add some meanwhile, where a loop over the set would raise."""
    while True:
        with suppress(RuntimeError):  # another thread has just added one
            return list(weak)
