"""How this program ends, for peers that wait for it."""

from __future__ import annotations

import sys

from .group import Group

__all__ = ["leave_at_exit"]


def leave_at_exit(group: Group) -> None:
    """Close a group at the end of the program. Its calls in the background are waited for, unless an error ends it."""
    error = getattr(sys, "last_value", None)  # what Python has just printed the traceback of
    if error is None:
        group.finish()  # peers still need them
        group.host.arena.mark_gone(group.rank, "ended")
    else:
        for one in group.all_of_it:
            one.abandon(f"raised {type(error).__qualname__}: {' '.join(str(error).split())}")
    group.close()
