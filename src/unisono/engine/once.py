"""`once`: what a process makes once, whichever of its threads asks first."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Made = TypeVar("Made")

_lock = threading.RLock()
"""Held while anything is made. Reentrant: a signal handler may make a call while its thread makes something."""


def once(make: Callable[..., Made]) -> Callable[..., Made]:
    """Decorator: call this function once for the same hashable arguments, then return what it has made.

    `functools.cache` lets two threads that ask at the same time both call the function, and drops what the first one
    has got. Here the second thread waits.
    """
    made: dict[tuple[Any, ...], Made] = {}

    @wraps(make)
    def find(*args: Any) -> Made:
        if args not in made:
            with _lock:
                if args not in made:
                    made.setdefault(args, make(*args))
        return made[args]

    return find


def _in_child() -> None:
    """In a forked child, no other thread holds the lock."""
    global _lock  # noqa: PLW0603  as with all that belongs to a process
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_in_child)
