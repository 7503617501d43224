"""`init()`, `get_rank()`, `get_world_size()`, `shutdown()`: the default group of this process."""

from __future__ import annotations

import atexit
import os
import time
from typing import Any, cast

from torch.distributed import Store

from ...base.config import Config
from ...base.errors import ArgumentError, DTypeError, NotInitialized, WaitTimeout
from ...base.records import DepartureKind
from ...base.units import integer, seconds
from ...engine.memory.arena import Arena
from ...hosts import AT_END
from ...observe.live.meeting_page import meeting_page
from ...schedule import Hosts
from ..rendezvous.launchers import Launch, detect
from ..rendezvous.meeting import Meeting, MeetingResult
from ..rendezvous.stores import meeting_store
from .current import NonMember, get_default, is_in_run, set_default
from .group import Group
from .world_group import leave_at_exit, world_group

_RETRY_S = 0.005

_timed_out: set[Launch] = set()  # the launches with a time-out in this process's last call

_kept: list[Store] = []
"""The last store: this process may be its server, as rank 0, and torch's own process groups may meet there, too."""


def init(
    rank: int | None = None, size: int | None = None, *, timeout_s: float | None = None, config: Config | None = None
) -> Group:
    """Make the default group of this process, or return it if there is one.

    Which processes become its ranks depends on how they were started:

    - by `unisono.run`: all ranks of the run;
    - by torchrun, mpirun or srun: all processes of the launch, on one host or several;
    - with `rank` and `size`: all processes that meet at MASTER_ADDR and MASTER_PORT;
    - otherwise: this process alone.

    After a WaitTimeout all ranks may call `init` again.

    Args:
        rank, size: This process's rank and the number of ranks. None: from the environment.
        timeout_s: Seconds to wait for the other ranks. None: the config's `timeout_s`.
        config: The group's settings. None: from the environment.

    Returns:
        The group.

    Raises:
        WaitTimeout: Some ranks did not come in time; the error names them.
        PeerGone: A rank died.
        ArgumentError: Arguments, environment or other ranks disagree; hosts cannot reach each other;
            another job uses the port; or ranks are threads of one process.
    """
    limit_s = None if timeout_s is None else seconds(timeout_s)
    group = get_default()
    if group is not None and not group.closed:
        for name, given, actual in (("rank", rank, group.rank), ("size", size, group.size)):
            if given is not None and given != actual:
                raise ArgumentError(
                    f"{name}: got {given}, but this process is already rank {group.rank} of {group.size}"
                )
        return group
    if is_in_run():
        raise NotInitialized(
            "this process has no group: it left the group of its run with shutdown(), or was forked from a rank. "
            "Make the call earlier, in the rank's process, or start another run."
        )
    rank, size = (None if given is None else integer(name, given) for name, given in (("rank", rank), ("size", size)))
    launch = detect(os.environ, rank, size)
    config = config or Config.from_env()
    limit_s = config.timeout_s if limit_s is None else limit_s
    end = time.monotonic() + limit_s
    with meeting_page(launch.rank, launch.size, limit_s, config.stall_warning_s):
        if launch.size == 1:
            met = MeetingResult(Arena.create(1, config), Hosts.one(1))
        else:
            met = meet_in_rounds(launch, end, config)
        group = world_group(met, launch.rank, config=config, timeout_s=max(0.0, end - time.monotonic()))
    set_default(group)
    return group


def meet_in_rounds(launch: Launch, deadline: float, config: Config | None = None) -> MeetingResult:
    """Meet the ranks of a launch. Raises as `meeting_store` and `Meeting.hold` do.

    A meeting ends for all ranks when the time of one of them is up. A rank in its first call of `init()` then hears at
    once which ranks are missing. A rank that calls `init()` again may do so while others are in their first call: their
    time-out says nothing about its own call. So it waits for the next meeting, until its own time is up.
    """
    began, again = time.monotonic(), launch in _timed_out
    _timed_out.discard(launch)
    try:
        with meeting_store(launch, deadline) as store:
            _kept[:] = [store]
            while True:
                left_s = deadline - time.monotonic()
                try:
                    where = launch.rank, launch.size, store, left_s, config
                    return Meeting(*where, job=launch.name, stale=launch.stale).hold()
                except WaitTimeout:
                    if not again or time.monotonic() >= deadline:
                        raise
                    time.sleep(_RETRY_S)
    except WaitTimeout as error:
        _timed_out.add(launch)
        waited_s = time.monotonic() - began
        raise WaitTimeout(error.call, waited_s, error.missing, launch.rank, error.details) from error


def group_or_default(group: Any) -> Group:
    """The group that a call names; if it names none, the default group, made by `init` if there is none."""
    if group is None:
        return get_default() or init()
    if not isinstance(group, (Group, NonMember)):
        raise DTypeError(f"group: got {type(group).__name__}, expected a Group or None")
    return cast("Group", group)  # a NonMember refuses its calls itself


def get_rank(group: Group | NonMember | None = None) -> int:
    """This process's rank in the group, or in the default group; -1 if it is not a member."""
    return -1 if isinstance(group, NonMember) else group_or_default(group).rank


def get_world_size(group: Group | NonMember | None = None) -> int:
    """The number of ranks of the group, or of the default group; -1 if this process is not a member."""
    return -1 if isinstance(group, NonMember) else group_or_default(group).size


def shutdown() -> None:
    """Finish asynchronous calls, then close the default group. Runs automatically at exit. Idempotent.

    Ranks that still wait for this one raise PeerGone.
    """
    default = get_default()
    if default is not None:
        set_default(None)
        group = default.world  # the default group may be a smaller one
        if not group.closed:
            group.finish()  # peers still need the calls in the background
            group.tell_departure(DepartureKind.LEFT, "left the group with shutdown()")
            group.close()
    _kept.clear()


@atexit.register
def _at_exit() -> None:
    group = get_default()
    if group is not None and not group.world.closed:
        leave_at_exit(group.world)
    shutdown()
    for end in AT_END:
        end()
