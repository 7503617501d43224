"""A smaller scene or program that goes wrong, too."""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def shrink(whole: T, simpler: Callable[[T], Iterable[T]], fails: Callable[[T], bool], until_s: float) -> T:
    """The smallest that is found until then (time.monotonic). simpler: those to try, much smaller ones first."""
    found: T | None = whole
    while found is not None:
        whole = found
        found = next((one for one in simpler(whole) if time.monotonic() < until_s and fails(one)), None)
    return whole
