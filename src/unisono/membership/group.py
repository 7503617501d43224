"""A group: the ranks that make collective calls together, in one order."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import torch

from ..config import Config
from ..engine.arena import Arena
from ..engine.bind import Plan
from ..engine.host import Host
from ..errors import InternalError, NotInitialized, UnisonoError

__all__ = ["Group"]


class Group:
    """The ranks of one host that share an arena.

    rank, size: who I am and how many we are. timeout_s: how long a call waits unless it says otherwise. broken: the
    exception that ended the group's use, or None. The other attributes serve the calls.
    """

    def __init__(self, arena: Arena, rank: int, *, name: str = "world", config: Config | None = None) -> None:
        config = config or Config.from_env()
        self.name, self.rank, self.size = name, rank, arena.size
        self.timeout_s = config.timeout_s
        self.broken: UnisonoError | None = None
        self.closed = False
        self.host = Host(arena, rank, config)
        self.lock = threading.Lock()
        """Held while a call runs: calls of one group run one after the other."""
        self.plans: dict[tuple[object, ...], Plan] = {}
        """What the fast path of each call looks its plan up in; empty once the group is broken or closed."""
        self.worker: Any = None
        """The thread that runs asynchronous calls, once there are any; see `work`."""
        self.uneven: dict[tuple[str, int], int] = {}
        """Collectives (with their roots) whose blocks have differed in size: how often they may be alike before the
        sizes are asked for no more; see `dispatch.exchange`."""
        self.mailbox: Any = None
        """What point-to-point calls go through, once there are any; see `p2p`."""
        self.pidfds: dict[int, int] = {}
        # The fast path reads these without another step in between.
        self.run, self.state = self.host.run, self.host.state
        self.heap_first, self.heap_end = self.host.heap_first, self.host.heap_end
        _alive.add(self)

    def check_usable(self) -> None:
        """Raise the exception that broke the group, or NotInitialized if it has been closed."""
        if self.broken is not None:
            raise self.broken.again()
        if self.closed:
            raise NotInitialized(
                f"group {self.name!r} has been closed, or belongs to the process from which this one was forked; "
                "call unisono.init() for a new one"
            )

    def break_off(self, error: UnisonoError) -> None:
        """No more calls: this one went wrong in a way that leaves the ranks apart."""
        self.broken = error
        self.plans = {}
        self.run = self._refuse

    def leave_to_parent(self) -> None:
        """In a child that was forked from this rank: the group stays the parent's."""
        self.closed, self.plans, self.run, self.worker = True, {}, self._refuse, None
        self.lock = threading.Lock()

    def _refuse(self, *_: int) -> int:
        """What a call runs that was already on its way when the group broke."""
        self.check_usable()
        raise InternalError(f"group {self.name!r} is neither broken nor closed, and yet refuses a call")

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """An uninitialised tensor in shared memory, which peers reach without a copy. Raises OutOfMemory."""
        self.check_usable()
        return self.host.heap.empty(shape, dtype or torch.get_default_dtype())

    def close(self) -> None:
        """End the group on this rank: finish asynchronous calls, give the descriptors up. Idempotent."""
        if self.closed:
            return
        if self.worker is not None:
            self.worker.close()
        for fd in self.pidfds.values():
            os.close(fd)
        self.pidfds.clear()
        self.closed, self.plans = True, {}
        self.host.arena.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ", broken" if self.broken else ""
        return f"Group({self.name!r}, rank {self.rank} of {self.size}{state})"


_alive: weakref.WeakSet[Group] = weakref.WeakSet()


def _in_child() -> None:
    for group in list(_alive):
        group.leave_to_parent()


os.register_at_fork(after_in_child=_in_child)
