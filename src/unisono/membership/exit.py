"""How this program ends, for peers that wait for it."""

from __future__ import annotations

import sys

from ..errors import WaitTimeout
from ..records import How
from .group import Group

__all__ = ["leave_at_exit"]

_PATIENCE_S = 10.0
"""How long the end of a program waits for its calls in the background: peers may be late, or never come."""


def leave_at_exit(group: Group) -> None:
    """Close a group at the end of the program, and let its calls in the background end, unless an error ends it."""
    how, words = How.ENDED, "ended"
    error = getattr(sys, "last_value", None)  # what Python has just printed the traceback of
    if error is not None:
        how, words = How.RAISED, f"raised {type(error).__qualname__}: {' '.join(str(error).split())}"
    else:
        try:
            group.finish(_PATIENCE_S)  # peers still need them
        except WaitTimeout:
            words = "ended while its call waited in the background"
    for one in group.all_of_it:
        one.abandon(how, words)
    group.close()
