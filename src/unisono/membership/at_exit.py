"""What a group does when the program ends, so that peers that wait for this rank learn why it is gone."""

from __future__ import annotations

import sys

from ..errors import WaitTimeout
from ..records import DepartureKind
from .group import Group

__all__ = ["leave_at_exit"]

_PATIENCE_S = 10.0
"""The end of a program waits this long for its calls in the background: peers may be late, or never come."""


def leave_at_exit(group: Group) -> None:
    """Finish the group's calls in the background, unless an exception ends the program; then close the group."""
    how, words = DepartureKind.ENDED, "ended"
    error = getattr(sys, "last_value", None)  # what Python has just printed the traceback of
    if error is not None:
        how, words = DepartureKind.RAISED, f"raised {type(error).__qualname__}: {' '.join(str(error).split())}"
    else:
        try:
            group.finish(_PATIENCE_S)  # peers still need them
        except WaitTimeout:
            words = "ended while its call waited in the background"
    for one in group.all_of_it:
        one.abandon(how, words)
    group.close()
