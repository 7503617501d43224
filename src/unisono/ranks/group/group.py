"""A group: the ranks that make collective calls together, in one order."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from ...base.config import Config
from ...base.errors import InternalError, NotInitialized, OutOfMemory, PeerFailed, UnisonoError
from ...base.python import members
from ...base.records import DepartureKind
from ...base.units import integer, seconds
from ...engine.compile.plan import Plan
from ...engine.helpers import Helpers
from ...engine.mailbox import Mailbox
from ...engine.memory.arena import Arena
from ...engine.memory.sub_arena import SubArena
from ...engine.rank import RankEngine
from ...hosts.span import Span
from ...observe.traces.recording import record
from ...schedule import Hosts
from .rank_liveness import RankLiveness


class Background(Protocol):
    """The thread of a group that runs its asynchronous calls, in order."""

    @property
    def busy(self) -> bool:
        """Are there calls that have not ended?"""

    @property
    def is_this_thread(self) -> bool: ...

    def finish(self, timeout_s: float | None) -> None:
        """Wait until all calls have ended. Raises WaitTimeout."""

    def close(self, *, wait: bool = True) -> None:
        """End the thread after its calls."""


class Messages(Protocol):
    """What moves the messages of a group."""

    def close(self) -> None:
        """End the group's messages, after the group has been closed."""


class Group:
    """Ranks that make calls together: all ranks of a job (the world), or some of them.

    All other attributes are internal.

    Attributes:
        rank: This process's rank.
        size: The number of ranks.
        timeout_s: Seconds that a call waits unless it says otherwise.
        broken: The exception after which the group cannot be used, or None.
        gid: A 64-bit number that identifies the group, the same on all members.
        span: The connections to other hosts. None: all ranks are on one host.
        parent: The group that a sub-group was made from. None for the world.
        world_ranks: The members' ranks in the world, in order.
    """

    _in_place = False
    """Does this rank still use the memory of a sub-group?"""
    shrinks: ClassVar[Callable[[Group, Iterable[int], float | None], Group]]
    """Does the work of `shrink`. It makes groups, so its file imports this one."""
    replaced = False
    """Has another group taken the place of this one, which no call had broken? Then its last messages still leave."""

    def __init__(
        self,
        arena: Arena | SubArena,
        rank: int,
        *,
        name: str = "world",
        config: Config | None = None,
        parent: Group | None = None,
        gid: int = 0,
        span: Span | None = None,
    ) -> None:
        config = config or Config.from_env()
        self.name, self.rank, self.size, self.parent = name, rank, arena.size, parent
        self.world_ranks = arena.members if isinstance(arena, SubArena) else tuple(range(arena.size))
        self.made_of = parent
        """The group that this one was made of, or the survivors' group in its place: its abort ends this one."""
        self._timeout_s = config.timeout_s
        self.broken: UnisonoError | None = None
        self.closed = False
        self.engine = RankEngine(arena, rank, config)
        if config.trace and isinstance(arena, Arena):
            at = span.recorded_at if span else None
            record(self.engine, Path(config.trace), at)
        self.engine.note_group(name, span.gid if span else 0)
        self.lock = threading.Lock()
        """Held while a call runs: a group runs one call at a time."""
        self.making = threading.RLock()
        """Held while `worker` or `progress_engine` is made. Reentrant: a signal handler may make a call meanwhile."""
        self.plans: dict[Hashable, Plan] = {}
        """The key of a request -> its plan; empty once the group is broken or closed."""
        self.shortcuts: dict[Hashable, Any] = {}
        """Call -> the same plans for the fast path, see `calls.dispatch.known`; empty when `plans` is."""
        self.worker: Background | None = None
        """Runs asynchronous calls, once there was one; see `calls.work`."""
        self.missing_in_background: tuple[int, ...] = ()
        """The ranks for which its call in the background waits, if a thread waits for it; see `failures.stall`."""
        self.peer_shrinks_since: float | None = None
        """Since when a rank that waits here has seen a peer shrink a group that this one was made of."""
        self.smaller: dict[frozenset[int], SubArena] = {}
        """While the group shrinks: the ranks left out -> the memory of the smaller group."""
        self._shrunk: Group | None = None
        self.progress_engine: Messages | None = None
        """Makes point-to-point calls, once there was one; see `calls.p2p`."""
        self.mailbox: Mailbox | None = None
        """The mailbox of `progress_engine`, for messages that take the short way; None when `plans` is empty."""
        self.helpers: Helpers = Helpers(arena.size) if parent is None else parent.world.helpers
        """The threads that help this rank, in all groups of its world."""
        self.gid, self.span = gid, span
        above = parent.world.liveness if parent else None
        far = () if span is None else (span.here, span.far.left)
        self.liveness: RankLiveness = RankLiveness(arena, above, self.world_ranks, *far)
        if span is not None:
            span.register(arena.start, self.world_ranks)
            if isinstance(arena, SubArena):
                arena.untouched, arena.settled = span.is_free, span.is_settled
        # Copies of the host's attributes: the fast path saves one look-up.
        self.run: Callable[..., int] = self.engine.run
        self.state, self.words = self.engine.state, self.engine.words
        self.heap_first, self.heap_end = self.engine.heap_first, self.engine.heap_end
        _alive.add(self)
        self._subgroups: weakref.WeakSet[Group] = weakref.WeakSet()
        """In the world's group only: all sub-groups, sub-groups of sub-groups included."""
        if isinstance(arena, SubArena):
            self._in_place = True
            self.world._subgroups.add(self)  # noqa: SLF001  a group, too

    @property
    def timeout_s(self) -> float:
        """Seconds that calls wait unless they say otherwise. Can be set."""
        return self._timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self._timeout_s = seconds(timeout_s)

    @property
    def world(self) -> Group:
        """The group of all ranks that share the arena."""
        return self if self.parent is None else self.parent.world

    @property
    def named(self) -> tuple[int, ...]:
        """The members as ranks of the world, for messages of a sub-group; empty for the world."""
        return self.world_ranks if self.parent else ()

    @property
    def hosts(self) -> Hosts:
        """Which of the group's ranks share a host."""
        return Hosts.one(self.size) if self.span is None else self.span.hosts

    @property
    def all_of_it(self) -> list[Group]:
        """This group's sub-groups, if it is the world, and the group itself."""
        return [*members(self._subgroups), self]

    def check_usable(self) -> None:
        """Raise the exception that broke the group, or NotInitialized if it has been closed."""
        if self.broken is not None:
            raise self.broken.again()
        if self.closed:
            make = "init()" if self.parent is None else "new_group()"
            raise NotInitialized(
                f"group {self.name!r} is closed, or belongs to the process that forked this one. Call unisono.{make} "
                "for a new one."
            )

    def forget_plans(self) -> None:
        """Let the next calls be planned anew."""
        self.plans.clear()
        self.shortcuts.clear()

    def give_up(self, error: UnisonoError) -> None:
        """Refuse all further calls here, with the first such error: ranks may be at different points of a call."""
        if self.broken is None:
            self.broken = error
        self._stop()

    def tell_departure(self, how: DepartureKind, words: str) -> None:
        """Tell all other ranks that this one makes no more calls. If it is called again, the first words stay."""
        self.engine.arena.board(self.rank).set_gone(how, words)
        if self.span is not None:
            self.span.tell()

    def abort(self, reason: str = "") -> None:
        """End every wait in this group and its sub-groups, on all their ranks. Idempotent.

        Waiting and later calls raise PeerFailed with this rank and the reason: at once here, within a tenth of a second
        on the other ranks. Tensors of the ended calls may have been written in part. Any thread may call it, even
        during a call, and so may a signal handler.
        """
        if self.closed:
            return
        words = f"aborted group {self.name!r}" + (f": {reason}" if reason else "")
        self.tell_departure(DepartureKind.ABORTED, words)
        error = PeerFailed(self.rank, words, self.rank, "", self.named, whole=True)
        self.give_up_all(error)

    def give_up_all(self, error: UnisonoError) -> None:
        """Give up this group, and groups that were made of it."""
        for group in self.world.all_of_it:
            above: Group | None = group
            while above is not None and above is not self:
                above = above.made_of
            if above is self:
                group.give_up(error)

    def shrink(self, *, without: Iterable[int] = (), timeout_s: float | None = None) -> Group:
        """Make a group of the survivors after ranks of this group have failed. All survivors make this call.

        The survivors agree on the failed ranks, without a store or launcher; any rank may have failed, and more may
        fail meanwhile. The new group keeps their order and replaces this one, also as the default group. Sub-groups
        without a failed rank go on; others can be shrunk, too. A rank that has aborted the group is a survivor.

        Args:
            without: Live ranks to leave out, such as the `missing` of a WaitTimeout. One rank may pass them for all,
                unless the others have already made the new group with these ranks.
            timeout_s: Seconds to wait for the survivors. None: the group's `timeout_s`.

        Raises:
            WaitTimeout: Some live ranks did not make this call; the error names them.
            PeerFailed: An exception such as Ctrl-C ended this call on a peer. All ranks may make it again.
            LeftOut: The others left this rank out.
            ArgumentError, OutOfMemory: `without` has invalid ranks, or there is too little memory.
        """
        if self.closed:
            self.check_usable()
        if self._shrunk is None:
            self._shrunk = Group.shrinks(self, without, timeout_s)
        return self._shrunk

    def leave_to_parent(self) -> None:
        """In a forked child of this rank: close the group here without touching the parent's memory."""
        self.closed, self._in_place, self.worker = True, False, None
        self._stop()
        self.lock, self.making = threading.Lock(), threading.RLock()

    def _stop(self) -> None:
        self.plans, self.shortcuts, self.mailbox = {}, {}, None
        # By a proxy: a reference cycle would keep a dropped group until the next garbage collection.
        self.run = partial(Group._refuse, weakref.proxy(self))

    def _refuse(self, *_: int) -> int:
        """Runs instead of the kernel in calls that passed check_usable before the group broke or was closed."""
        self.check_usable()
        raise InternalError(f"group {self.name!r} refused a call, but is neither broken nor closed")

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Make an uninitialized tensor in shared memory, as `unisono.empty` does. Raises OutOfMemory."""
        self.check_usable()
        sizes = tuple(integer("shape", extent) for extent in shape)
        return self.engine.heap.empty(sizes, dtype or torch.get_default_dtype())

    def buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised flat tensor for collectives: in shared memory if there is room, otherwise private."""
        if count and self.broken is None and not self.closed:
            try:
                return self.engine.heap.flat(count, dtype)
            except OutOfMemory:
                pass
        return torch.empty(count, dtype=dtype, device="cpu")

    def hold(self, plan: Plan, *tensors: object) -> None:
        """Keep the memory of tensors for good after a call that has broken the group, if other ranks access them: a
        late rank may still do so.
        """
        if self.broken is not None and plan.program.lowering.zero_copy:
            keep_for_good(
                tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else tensor for tensor in tensors
            )

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait for this rank's asynchronous calls, also of sub-groups. Raises WaitTimeout after timeout_s, if given."""
        until = None if timeout_s is None else time.monotonic() + seconds(timeout_s)
        for group in self.all_of_it:
            if group.worker is not None and group.worker.busy:
                left_s = None if until is None else max(0.0, until - time.monotonic())
                group.worker.finish(left_s)

    def close(self) -> None:
        """Close the group on this rank, after its asynchronous calls have ended. Idempotent.

        Closing the world closes its sub-groups. It does not wait for other ranks; ranks that wait for this one raise
        PeerGone.
        """
        if self.closed:
            return
        for group in members(self._subgroups):
            group.close()
        if self.worker is not None:
            self.worker.close()
        self.liveness.close()
        self.closed = True
        self._stop()
        if self.progress_engine is not None:
            self.progress_engine.close()
        if self.span is not None:
            self.span.close(whole=self.parent is None, failed=self.broken is not None and not self.replaced)
        if isinstance(self.engine.arena, Arena):
            self.engine.forget_group()
            self.helpers.end()
            self.engine.lender.left.clear()  # they refer to it, and so to the memory of the world
            self.engine.arena.close()
        elif self.lock.acquire(blocking=False):  # else another thread is in a call: left when the group is dropped
            if self.span is not None and self.span.call is not None:  # an exception has left it unfinished
                self.span.call.drop()
            self._leave()
            self.engine.lender.collect()
            self.lock.release()

    def _leave(self) -> None:
        """Stop using the memory of a sub-group. Takes no lock: the garbage collector may call this anywhere."""
        if isinstance(self.engine.arena, SubArena) and self._in_place:
            self._in_place = False
            self.engine.forget_group()
            self.engine.arena.leave(self.progress_engine)
            self.progress_engine = None
            if self.span is not None:
                self.span.forget()  # the sentinel sends this rank's last board before

    def __del__(self) -> None:
        if self._in_place:  # the program has dropped this sub-group
            if self.worker is not None:
                self.worker.close(wait=False)
            self._leave()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ", broken" if self.broken else ""
        return f"Group({self.name!r}, rank {self.rank} of {self.size}{state})"


_held: dict[int, object] = {}
"""Address -> memory of calls in which groups have broken. Tensors of a repeated call are held once."""


def keep_for_good(memory: Iterable[object]) -> None:
    """Keep this memory until the process ends: tensors, storages, or their owners."""
    _held.update((one.data_ptr() if isinstance(one, torch.UntypedStorage) else id(one), one) for one in memory)


_alive: weakref.WeakSet[Group] = weakref.WeakSet()


def _in_child() -> None:
    for group in members(_alive):
        group.leave_to_parent()


os.register_at_fork(after_in_child=_in_child)
