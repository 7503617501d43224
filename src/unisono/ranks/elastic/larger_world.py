"""A new world of the members of a group and of new processes: all of them meet, as at the start of a job.

The old world stays as it is until all have the new one. Then they agree, as survivors do when they shrink a group,
on the ranks that are left. If all ranks are, there is a larger group. Otherwise no rank goes on in the new world. So
the members come to the same decision, whichever ranks die meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ...base.config import Config
from ...base.errors import PeerFailed, WaitTimeout
from ...base.records import DepartureKind
from ..group.current import get_default, set_default
from ..group.group import Group
from ..group.world_group import world_group
from ..rendezvous.meetings import may_come
from ..rendezvous.rendezvous import meet

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

MEET_S = 30.0
"""How long the ranks may take to meet. A new process on another host that dies meanwhile is waited for as long."""
_AGREE_S = 10.0  # how long a rank that has the new world waits for the others to have it


def larger_world(
    store: Store,
    meeting: str,
    rank: int,
    members: int,
    size: int,
    config: Config,
    why_absent: Callable[[int], str] = may_come,
) -> Group:
    """The group of `size` ranks that come to a meeting at this store. why_absent: see `meetings.may_come`.

    The first `members` ranks are the members of the old group. Raises as `meet`, `world_group` and `shrink` do, and
    PeerFailed if a rank has failed: then no rank has this group.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # late: torch.distributed takes a second

    deadline = time.monotonic() + MEET_S
    met = meet(rank, size, PrefixStore(meeting, store), MEET_S, config, why_absent)
    try:
        world = world_group(met, rank, config=config, timeout_s=max(0.0, deadline - time.monotonic()))
    except BaseException:
        met.arena.close()
        raise
    try:
        larger = _all_or_none(world)
    except BaseException as error:
        world.tell_departure(DepartureKind.RAISED, f"raised {type(error).__name__} while the group grew")
        world.close()
        raise
    larger.newcomers = tuple(range(members, size))
    return larger


def _all_or_none(world: Group) -> Group:
    """The group of all ranks of the new world, if all have it. Raises as `shrink` does, and PeerFailed."""
    late: tuple[int, ...] | None = None
    while True:
        try:
            group = world.shrink(without=late or (), timeout_s=_AGREE_S)
        except PeerFailed:
            continue  # once for each exception of a peer, which leaves the world
        except WaitTimeout as error:
            if late is not None:
                raise
            late = error.missing
            continue
        if group.size == world.size:
            return group
        failed = min({*range(world.size)} - {*group.world_ranks})
        raise PeerFailed(failed, "has failed, or has come too late", world.rank, "grow()")


def take_over(old: Group, larger: Group) -> None:
    """Go on in the larger group, and close all groups of the old world."""
    before, default = old.world, get_default()
    larger.timeout_s = old.timeout_s
    larger.world.join_listener, before.join_listener = before.join_listener, None
    groups, words = before.all_of_it, f"went on in group {larger.name!r}"
    with suppress(WaitTimeout):
        before.finish(_AGREE_S)
    before.close()  # its last messages still leave
    for group in groups:
        group.give_up(PeerFailed(group.rank, words, group.rank, "a call", group.named))
    if default is None or default.world is before:
        set_default(larger)
