"""Join a group through torch's store, or in the memory of the world, and leave it."""

import atexit
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

from torch.distributed import PrefixStore, Store, distributed_c10d

from ...base.config import Config
from ...base.errors import ArgumentError, NotInitialized, PeerGone, UnisonoError, WaitTimeout
from ...base.records import Departure, DepartureKind
from ...engine.memory.arena import Arena
from ...hosts import AT_END
from ...observe.live.meeting_page import meeting_page
from ...ranks.group.current import get_default, set_default
from ...ranks.group.group import Group
from ...ranks.group.sub_groups import make_sub_group
from ...ranks.group.world_group import leave_at_exit, world_group
from ...ranks.rendezvous.asked_store import AskedStore
from ...ranks.rendezvous.launchers import has_several_agents, job_at_store
from ...ranks.rendezvous.meeting import Meeting, MeetingResult
from ...ranks.rendezvous.participant import may_come
from ...ranks.rendezvous.rendezvous_messages import missing
from ...schedule import Hosts

_ASK_S = 0.0002
_COMES = "rank {} comes"
_FOLLOW_S = 1.0  # how long a rank that leaves waits for rank 0 to leave
_LEFT = DepartureKind.LEFT, "left the group with destroy_process_group()"

_worlds: dict[Group, str] = {}
"""Group with memory of its own, or the smaller one that has taken its place -> the name of its meeting, if it is
torch's group of all ranks. The name keeps the keys of its sub-groups apart from the keys of an earlier world.
"""


def join(
    store: Store,
    rank: int,
    size: int,
    name: str,
    timeout_s: float,
    global_ranks: Sequence[int] = (),
    config: Config | None = None,
    *,
    apart: bool = False,
    why_absent: Callable[[int], str] = may_come,
) -> Group:
    """Return the group of the `size` ranks that call this with the same store.

    global_ranks: the members, in order, as ranks of torch's group of all ranks; empty: all ranks at the store.
    apart: the group is independent of torch's group of all ranks, and may have ranks of several jobs. Otherwise a group
    of all ranks becomes unisono's default group, if there is none.
    why_absent: see `may_come`. With another function, members of a sub-group wait for each other, and ask it meanwhile.

    Raises WaitTimeout, which names the missing ranks; ArgumentError if the ranks cannot form a group; OutOfMemory.
    """
    if global_ranks and (whole := whole_world()) is not None:
        if isinstance(whole.broken, NotInitialized):
            raise whole.broken.again()
        if why_absent is not may_come:
            with naming(name):
                _all_want_ours(store, rank, size, timeout_s, why_absent)
        of_world = [whole.world_ranks[member] for member in global_ranks]  # the world may have shrunk
        return make_sub_group(whole, rank, of_world, name, timeout_s)
    config = (config or Config.from_env()).replace(timeout_s=timeout_s)
    with naming(name), meeting_page(rank, size, timeout_s, config.stall_warning_s):
        is_world = not apart and not global_ranks
        job = job_at_store(os.environ, size) if is_world else ""
        stale = is_world and has_several_agents(os.environ)
        met = _meet(PrefixStore("unisono", store), rank, size, config, why_absent, job, stale=stale)
        group = world_group(met, rank, name=name, config=config, why_absent=why_absent)
    if is_world:
        for earlier in list(_worlds):
            if _has_aborted(earlier):  # so torch has forgotten it
                leave(earlier)
        _offer_default(group)
    keep(group, met.name if is_world else "")
    return group


def keep(group: Group, meeting: str = "") -> None:
    """Leave this group when the program ends. meeting: the name of its meeting, if it is torch's group of all ranks."""
    _worlds[group] = meeting


def _offer_default(group: Group) -> None:
    default = get_default()
    if default is None or default.closed:
        set_default(group)


def replace(old: Group, new: Group, meeting: str, *, whole: bool) -> None:
    """Close an aborted group, as another one takes its place. whole: it is torch's group of all ranks."""
    if _worlds.pop(old, None) is not None:
        old = old.world  # it may have shrunk from a larger world
    was_default = get_default() is old
    old.close()
    keep(new, meeting)
    if whole or was_default:
        _offer_default(new)


def whole_world() -> Group | None:
    """torch's group of all ranks, if it is one of ours; its sub-groups have parts of its memory."""
    group = getattr(distributed_c10d.GroupMember.WORLD, "group", None)
    return group if isinstance(group, Group) and not group.closed else None


def store_of_meeting(store: Store, group: Group) -> Store:
    """The part of a store that no earlier start of the job has used, once the ranks of the group have met there."""
    world = group if group in _worlds else whole_world()
    meeting = "" if world is None else _worlds.get(world, "")
    return PrefixStore(meeting, store) if meeting else store


def _has_aborted(world: Group) -> bool:
    """Has this rank aborted it?"""
    gone = None if world.closed else world.engine.arena.board(world.rank).gone
    return gone is not None and gone.how is DepartureKind.ABORTED


def _all_want_ours(store: Store, rank: int, size: int, timeout_s: float, why_absent: Callable[[int], str]) -> None:
    """Return when all members have come to make our group. A member that makes Gloo's group may not be in our world.

    Raises ArgumentError, with the reason, if a member will not come.
    """
    began, left = time.monotonic(), list(range(size))
    with closing(AskedStore(PrefixStore("unisono", store), rank, began + timeout_s)) as asked:
        asked.set(_COMES.format(rank), "")
        while left := [other for other in left if not asked.check([_COMES.format(other)])]:
            if reason := next(filter(None, map(why_absent, left)), ""):
                raise ArgumentError(reason)
            if (waited_s := time.monotonic() - began) >= timeout_s:
                raise missing(tuple(left), rank, waited_s)
            time.sleep(_ASK_S)


def leave(group: Group, *, with_store: bool = False) -> None:
    """Wait for the calls in the background, tell the other ranks, and close the group. Idempotent.

    with_store: does torch drop the store, too? The store is mostly a server in the process of rank 0. So the others
    wait up to a second until rank 0 has dropped it. Otherwise their next group would find the old server.
    """
    if get_default() is group:
        set_default(None)
    if _worlds.pop(group, None) is not None:
        group = group.world  # the group may have shrunk from a larger world
    if group.closed:
        return
    group.finish()  # peers still need these calls
    if group.parent is not None:
        group.close()
    elif with_store and group.rank == 0:
        last: Any = distributed_c10d._world.pg_coalesce_state  # noqa: SLF001
        last[_Last(partial(_end, group))] = []
    else:
        group.tell_departure(*_LEFT)
        until = time.monotonic() + _FOLLOW_S
        if with_store and group.broken is None:
            while not group.liveness.gone(0) and time.monotonic() < until:
                if group.span is not None:
                    group.span.ask()
                time.sleep(_ASK_S)
        group.close()


def leave_when_dropped(holder: Any, group: Group) -> None:
    """Leave a group when the program no longer holds `holder`, as Gloo's groups do. torch holds those that it makes."""
    weakref.finalize(holder, _dropped, group).atexit = False


def _dropped(group: Group) -> None:
    if group in _worlds and (group.worker is None or not group.worker.busy):
        leave(group)


def _end(group: Group) -> None:
    group.tell_departure(*_LEFT)
    group.close()


def go_on(group: Group, without: Sequence[int]) -> Group:
    """The group of the other ranks, in place of this one; see `Group.shrink`.

    Raises PeerGone if more ranks have failed than the ranks in `without`.
    """
    smaller = group.shrink(without=without)
    if group in _worlds:
        _worlds[smaller] = _worlds.pop(group)
    left = [rank for rank in range(group.size) if group.world_ranks[rank] not in smaller.world_ranks]
    if left != sorted(without):
        rank = next(rank for rank in left if rank not in without)
        how = group.liveness.gone(rank) or Departure(DepartureKind.DIED, "died")
        pid = group.engine.arena.board(rank).pid
        raise PeerGone(rank, pid, how, group.rank, "shrink_group()", group.named, failed=left)
    return smaller


class _Last:
    """Calls `then` when torch has dropped its stores. It is a key in a table that torch empties after its stores."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def __del__(self) -> None:
        self._then()


def _meet(
    store: Store, rank: int, size: int, config: Config, why_absent: Callable[[int], str], job: str, *, stale: bool
) -> MeetingResult:
    if size == 1:
        return MeetingResult(Arena.create(1, config), Hosts.one(1), name=os.urandom(8).hex())
    met = Meeting(rank, size, store, config.timeout_s, config, why_absent, job=job, stale=stale).hold()
    if rank == 0:  # all ranks have come, and have read what they need
        with suppress(UnisonoError), closing(AskedStore(store, rank, time.monotonic())) as asked:
            for key in (*(f"rank {r}" for r in range(1, size)), "hosts"):
                asked.delete(f"{met.name}/{key}")
    return met


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Let errors of absent ranks name the process group that is made."""
    call = f"making the process group {name!r}"
    try:
        yield
    except WaitTimeout as error:
        raise WaitTimeout(call, error.waited_s, error.missing, error.waiting, error.details) from error
    except PeerGone as error:
        raise PeerGone(error.rank, error.pid, error.how, error.waiting, call, met=False) from error


@atexit.register
def _leave_all() -> None:
    for group in list(_worlds):
        if not group.world.closed:
            leave_at_exit(group.world)
    for end in AT_END:
        end()
