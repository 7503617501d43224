"""`grow`: a group becomes larger again. New processes take the places of ranks that have ended.

    larger = unisono.grow()
    if larger is not group:
        group = larger
        ...  # send the state to group.newcomers

A member's part is here. `ranks.elastic.join_admission` is the part of the first rank, which has the join listener, and
`ranks.elastic.join_request` the part of a process that joins. Over hosts, `ranks.elastic.admission_over_hosts` has the
members' part, and `ranks.elastic.store_door` the part of a process that joins.
"""

from __future__ import annotations

import time
from dataclasses import astuple
from typing import Any

from ..base.errors import ArgumentError, OutOfMemory, PeerError, WaitTimeout
from ..base.records import DepartureKind
from ..base.units import hints_timeout_s
from ..engine.memory.sub_arena import SubArena
from ..ranks.elastic.admission_over_hosts import AdmissionOverHosts, meet_newcomers
from ..ranks.elastic.join_admission import Decision, JoinAdmission
from ..ranks.elastic.join_request import until_all_are_in
from ..ranks.elastic.store_door import address_of
from ..ranks.group.abort import give_up
from ..ranks.group.group import Group
from ..ranks.group.initialize import group_or_default
from ..ranks.group.survivors import go_on
from .collectives.barrier import barrier
from .objects import broadcast_object_list

_ASK_S = 0.0002


@hints_timeout_s
def grow(
    group: Group | None = None, *, size: int | None = None, timeout_s: float | None = None, door: str | None = None
) -> Group:
    """A larger group, with the new processes that have called `unisono.join`, or this group if there are none.

    All ranks of the group make this call, and all get the same answer. The newcomers take the places of ranks that have
    ended, with their numbers in the world. The first rank of the group listens for them, also between
    calls. The larger group has all members in the order of the world, and is the default group if this one was; this
    group is used no more. `newcomers` of the larger group are its new ranks.

    Over several hosts, any number of new processes may come, on any host. Members and newcomers make a new world, in
    which the newcomers have the last ranks. If a rank fails meanwhile, the group stays as it is, and standard error
    says why. All other groups of the members are closed, and the larger group is the default group.

    size: wait until the group has this size, and then go on with the processes that have come. None: let in the
    processes that are there, without waiting.
    timeout_s: the longest wait for `size`; None: as long as calls of this group wait.
    door: the name of the job, for `join`; None: what the environment says. Over several hosts: an address of the first
    rank's host and a port, such as `10.0.0.1:29500`, or those of a store of torch; None: MASTER_ADDR and MASTER_PORT.

    The arguments of the first rank count. Groups with an ended rank can be used no more once its place is taken again,
    not even by `shrink`. Raises ArgumentError on all ranks if there is no name for the job, if another process has the
    name, and if ranks are alive that are no members of the group. Raises PeerGone, as other calls do, and OutOfMemory.
    """
    group = group_or_default(group)
    group.check_usable()
    over_hosts = group.world.span is not None or bool(door and address_of(door, {}))
    admits = AdmissionOverHosts if over_hosts else JoinAdmission
    admission = admits(group, door, size, timeout_s) if group.rank == 0 else None
    while True:
        try:
            said: list[Any] = [astuple(admission.decision()) if admission else None]
        except BaseException as error:
            _tell(group, error)
            raise
        broadcast_object_list(said, 0, group)
        decision = Decision(*said[0])
        if decision.refused:
            raise ArgumentError(decision.refused)
        if decision.full:
            raise OutOfMemory(decision.full)
        if decision.meeting:
            if (larger := meet_newcomers(group, decision, admission)) is not None:
                return larger
        elif decision.places and (memory := _make(group, admission, decision)) is not None:
            return _enter(group, memory, decision)
        if not decision.places and not decision.wait:
            return group


def _make(group: Group, admission: JoinAdmission | None, decision: Decision) -> SubArena | None:
    """The memory of the larger group; None: no process has been let in."""
    try:
        group.give_up_places(frozenset(decision.places))
    except BaseException as error:
        if admission is not None:
            admission.give_up(decision)
        _tell(group, error)
        raise
    return _follow(group, decision) if admission is None else _lead(group, admission, decision)


def _lead(group: Group, admission: JoinAdmission, decision: Decision) -> SubArena | None:
    """The part of the first rank: when all members have left the ended ranks' groups, it lets the newcomers in."""
    try:
        barrier(group)
        return admission.admit(decision)
    except BaseException as error:
        admission.give_up(decision)
        _tell(group, error)
        raise


def _follow(group: Group, decision: Decision) -> SubArena | None:
    """The part of every other rank: wait until the first rank says how the attempt has ended."""
    failure: PeerError | WaitTimeout | None = None
    try:
        try:
            barrier(group)
        except (PeerError, WaitTimeout) as error:
            failure = error  # but the first rank may have heard from all ranks in time
        start = _outcome(group, decision)
    except BaseException as error:
        if not isinstance(error, WaitTimeout):  # this rank goes, and may be a member of the larger group unknowingly
            words = f"was interrupted by {type(error).__name__} in grow()"
            group.world.host.arena.board(group.world.rank).set_gone(DepartureKind.RAISED, words)
        raise
    if start:
        members, first = sorted({*group.world_ranks, *decision.places}), group.world_ranks[0]
        mine = members.index(group.world.rank)
        return group.world.host.lender.borrow(start, members, mine, members.index(first))
    if failure is not None:
        raise failure
    return None


def _outcome(group: Group, decision: Decision) -> int | None:
    """Where the memory of the larger group begins; nothing if no process has been let in."""
    board, began = group.world.host.arena.board(group.world_ranks[0]), time.monotonic()
    while (start := board.growth(decision.number)) is None:
        if group.liveness.left(0):
            return board.growth(decision.number)  # the first rank may have said it before it went
        if time.monotonic() - began > group.timeout_s:
            error = WaitTimeout("grow()", time.monotonic() - began, (0,), group.rank, "", group.named)
            group.give_up(error)
            raise error
        time.sleep(_ASK_S)
    return start


def _tell(group: Group, error: BaseException) -> None:
    """Let the others know that this rank does not go on."""
    give_up(group, f"interrupted by {type(error).__name__}", "grow()")


def _enter(group: Group, memory: SubArena, decision: Decision) -> Group:
    try:
        larger = go_on(group, memory)
        larger.newcomers = tuple(memory.members.index(place) for place in decision.places)
        if group.world.join_listener is not None and larger.rank > 0:
            group.world.join_listener.close()
            group.world.join_listener = None
        until_all_are_in(larger, memory, "grow()")
    except WaitTimeout:
        raise  # the larger group exists: its shrink() can leave out the missing ranks
    except BaseException as error:
        memory.board(memory.rank).set_gone(DepartureKind.RAISED, f"raised {type(error).__name__} in grow()")
        raise
    return larger
