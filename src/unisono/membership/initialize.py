"""`init()` and `shutdown()`: the default group of this process, whoever started it."""

from __future__ import annotations

import atexit
import os
import time
from typing import TYPE_CHECKING

from ..config import Config
from ..engine.arena import Arena
from ..errors import ArgumentError, NotInitialized
from ..records import How
from .current import get_default, is_rank_of_run, set_default
from .detect import detect
from .exit import leave_at_exit
from .group import Group
from .rendezvous import connect, meet

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

__all__ = ["init", "shutdown"]

_attempts = 0
_store: Store | None = None
"""Kept because rank 0 may be its server, and torch's own process groups may meet there too."""


def init(
    rank: int | None = None, size: int | None = None, *, timeout_s: float | None = None, config: Config | None = None
) -> Group:
    """The default group of this process; made at the first call, the same at every later one.

    In a function started by `run`: the group of its ranks. Under torchrun: that of all processes, which must be on
    one host. With rank and size: the ranks meet at MASTER_ADDR and MASTER_PORT. Else a group of this process alone.

    Waits at most timeout_s (else the config's) for the other ranks. Raises WaitTimeout, naming those that did not
    come, and ArgumentError where arguments and environment contradict each other or ranks run on several hosts.
    """
    global _attempts, _store  # noqa: PLW0603  the default group is one per process, and so is how it came to be
    group = get_default()
    if group is not None and not group.closed:
        for name, given, actual in (("rank", rank, group.rank), ("size", size, group.size)):
            if given is not None and given != actual:
                raise ArgumentError(f"{name}={given}, but this process is already rank {group.rank} of {group.size}")
        return group
    if is_rank_of_run():
        raise NotInitialized(
            "this rank has left the group of its run with shutdown(); there is no other: make the call before, or "
            "start another run"
        )
    launch = detect(os.environ, rank, size)
    config = config or Config.from_env()
    if launch.size == 1:
        arena = Arena.create(1, config)
    else:
        _attempts += 1
        end = time.monotonic() + (config.timeout_s if timeout_s is None else timeout_s)
        _store = connect(launch, end - time.monotonic(), _attempts)
        arena = meet(launch, _store, end - time.monotonic(), config)
    group = Group(arena, launch.rank, config=config)
    set_default(group)
    return group


def shutdown() -> None:
    """Close the default group; peers that still wait for this rank learn that it has left. Runs at exit by itself."""
    global _store  # noqa: PLW0603  see init
    group = get_default()
    if group is not None:
        set_default(None)
        if not group.closed:
            group.finish()  # peers still need the calls in the background
            group.host.arena.mark_gone(group.rank, How.LEFT, "left the group with shutdown()")
            group.close()
    _store = None


@atexit.register
def _at_exit() -> None:
    group = get_default()
    if group is not None and not group.closed:
        leave_at_exit(group)
    shutdown()
