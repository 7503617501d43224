"""The group of all ranks that have met, and how a program that ends leaves it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from weakref import ref

from ...base.config import Config
from ...base.errors import PeerFailed, WaitTimeout
from ...base.records import DepartureKind
from ..rendezvous.meeting import MeetingResult, tell_gave_up
from ..rendezvous.participant import may_come
from .group import Group
from .survivors import shrink

Group.shrinks = staticmethod(shrink)

_AT_EXIT_S = 10.0
"""How long the end of a program waits for its asynchronous calls: peers may be late, or never come."""


def world_group(
    met: MeetingResult,
    rank: int,
    *,
    name: str = "world",
    config: Config | None = None,
    timeout_s: float | None = None,
    why_absent: Callable[[int], str] = may_come,
) -> Group:
    """The group of all ranks that have met. timeout_s: how long to wait for them; None: as long as the config's calls.
    why_absent: see `may_come`.

    Over several hosts: raises WaitTimeout if the sentinel of a host, or a connection, does not come; PeerGone if a rank
    has ended, or given up, meanwhile; ArgumentError for content of the store that no rank would have written.
    """
    config = config or Config.from_env()
    if not met.hosts.spans:
        try:
            group = Group(met.arena, rank, name=name, config=config)
        except BaseException as error:
            tell_gave_up(met.arena, rank, error)
            raise
    else:
        from .world_over_hosts import group_over_hosts  # carriers, which ranks of one host do without

        limit_s = config.timeout_s if timeout_s is None else timeout_s
        group = group_over_hosts(met, rank, name=name, config=config, timeout_s=limit_s, why_absent=why_absent)
    _leave_with_multiprocessing(ref(group))
    return group


def _leave_with_multiprocessing(world: ref[Group]) -> None:
    """Have a process of multiprocessing leave the group at its end.

    A forked one runs no functions of `atexit`, or from Python 3.13 on only its own, not those of its parent's imports.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    def leave() -> None:
        group = world()
        if group is not None and not group.closed:
            leave_at_exit(group)

    Finalize(None, leave, exitpriority=0)


def leave_at_exit(world: Group) -> None:
    """When the program ends: finish asynchronous calls, unless an exception ends it; tell the peers; close."""
    how, words = DepartureKind.ENDED, "ended"
    # The exception whose traceback Python has just printed, or multiprocessing is about to print.
    error = getattr(sys, "last_value", None) or sys.exc_info()[1]
    if error is not None and not isinstance(error, SystemExit):
        text = " ".join(str(error).split())
        how, words = DepartureKind.RAISED, f"raised {type(error).__qualname__}{text and f': {text}'}"
    else:
        try:
            world.finish(_AT_EXIT_S)  # peers still need them
        except WaitTimeout:
            words = "ended before its asynchronous call was complete"
    for group in world.all_of_it:
        if not group.closed:
            group.tell_departure(how, words)
            group.give_up(PeerFailed(group.rank, words, group.rank, "a call"))
    world.close()
