"""Sub-groups: groups of some ranks of a parent group.

`new_group` and `split` are calls of the parent: every rank of the parent makes them, in order with its other calls. A
sub-group has its own order of calls, its own rank numbers (an argument such as `src` is a rank of the sub-group) and
its own failures. It opens no descriptor and maps no memory, so hundreds of sub-groups are cheap. Tensors of
`unisono.empty` are zero copy in all groups.

    row = unisono.split(color=rank // columns)
    unisono.all_reduce(tensor, group=row)

A rank that is not in the new group gets a `NonMember`, which is false: guard calls with `if group:`.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch

from ..base.errors import ArgumentError, DTypeError
from ..base.records import CallRecord, digest
from ..base.units import integer, ranks_text, seconds, text
from ..ranks.group.current import NonMember, get_default
from ..ranks.group.group import Group
from ..ranks.group.initialize import group_or_default, shutdown
from ..ranks.group.sub_groups import make_sub_group
from .dispatch import Call, Request

_NO_COLOR = -1
_MOST_NAMED, _MOST_WORDS = 6, 560


def new_group(
    ranks: Iterable[int] | None = None,
    *,
    group: Group | None = None,
    timeout_s: float | None = None,
    name: str | None = None,
) -> Group | NonMember:
    """Make a group of some ranks of a parent group. Every rank of the parent makes this call with the same ranks.

    Args:
        ranks: Ranks of the parent, in any order; the group has them in ascending order, as in torch. None: all ranks.
        group: The parent. None: the default group.
        timeout_s: Seconds that calls of the new group wait. None: the parent's.
        name: Shown in errors.

    Returns:
        The group, or on ranks outside it a `NonMember`, which is false and raises in every call.

    Raises:
        ArgumentError: The parent has no such rank.
        MismatchError: The ranks of the parent passed different ranks. The parent can still be used.
        OutOfMemory: The shared memory is full. The parent can still be used.
    """
    with Call("new_group", group) as call:
        parent, timeout_s = call.group, _check_timeout_and_name(timeout_s, name)
        chosen = list(range(parent.size)) if ranks is None else _check_ranks(ranks, parent)
        call.agree(_record(f"{chosen}"))
    call.run()
    return _make(parent, chosen, parent.rank in chosen, timeout_s, name)


def split(
    color: int | None,
    key: int = 0,
    *,
    group: Group | None = None,
    timeout_s: float | None = None,
    name: str | None = None,
) -> Group | NonMember:
    """Make one group for each color, as MPI_Comm_split does. Every rank of the parent makes this call.

    Args:
        color: 0 or more; ranks with the same color form a group. None or negative: this rank joins no group.
        key: Orders the members of a group; equal keys keep the order of the parent.
        group, timeout_s, name: As in `new_group`, with the same result and errors.
    """
    with Call("split", group) as call:
        parent, timeout_s = call.group, _check_timeout_and_name(timeout_s, name)
        color = max(_NO_COLOR, _NO_COLOR if color is None else _check_word("color", color))
        mine = torch.tensor([color, _check_word("key", key)], dtype=torch.int64, device="cpu")
        table = torch.empty(parent.size, 2, dtype=torch.int64, device="cpu")
        call.plan(Request("all_gather", mine, mine, table, says=CallRecord("split", words="...")))
    call.run()
    joins, colors, keys = color != _NO_COLOR, table[:, 0].tolist(), table[:, 1].tolist()
    members = sorted((rank for rank, other in enumerate(colors) if joins and other == color), key=keys.__getitem__)
    return _make(parent, members, joins, timeout_s, name)


def destroy_group(group: Group | NonMember) -> None:
    """Leave a group, after this rank's asynchronous calls in it have ended. Does not wait for other ranks.

    The group's memory is freed when the last member has left. The default group is closed as by `shutdown()`.
    """
    if not isinstance(group, (Group, NonMember)):
        raise DTypeError(f"group: got {type(group).__name__}, expected a Group")
    if group is get_default():
        shutdown()
    else:
        group.close()


def get_global_rank(group: Group | NonMember, group_rank: int) -> int:
    """The world rank of a rank of the group. Raises ArgumentError if the group has no such rank."""
    group_rank = integer("group_rank", group_rank, "a rank")
    if not 0 <= group_rank < len(group.world_ranks):
        raise ArgumentError(
            f"group_rank: got {group_rank}, expected 0 to {len(group.world_ranks) - 1} in group {group.name!r}"
        )
    return group.world_ranks[group_rank]


def get_group_rank(group: Group | NonMember, global_rank: int) -> int:
    """The group's rank of a rank of the world. Raises ArgumentError if that rank is not a member."""
    global_rank = integer("global_rank", global_rank, "a rank")
    if global_rank not in group.world_ranks:
        raise ArgumentError(
            f"global_rank: got {global_rank}, expected a member of group {group.name!r}, one of "
            f"{list(group.world_ranks)}"
        )
    return group.world_ranks.index(global_rank)


def get_process_group_ranks(group: Group | NonMember | None = None) -> list[int]:
    """The world ranks of the members of a group, in order. None: the default group."""
    return list(group_or_default(group).world_ranks)


def _check_timeout_and_name(timeout_s: float | timedelta | None, name: str | None) -> float | None:
    if name is not None:
        text("name", name)
    return None if timeout_s is None else seconds(timeout_s, positive=True)


def _check_ranks(ranks: Iterable[int], parent: Group) -> list[int]:
    if not isinstance(ranks, Iterable):
        raise DTypeError(f"ranks: got {type(ranks).__name__}, expected a list of ranks")
    chosen = [integer("ranks", rank) for rank in ranks]
    for rank in chosen:
        if not 0 <= rank < parent.size:
            raise ArgumentError(f"ranks: rank {rank} is not in group {parent.name!r} (size {parent.size})")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ArgumentError(f"ranks: got {chosen}, expected at least one rank, and each once")
    return sorted(chosen)


def _check_word(argument: str, value: int) -> int:
    value = integer(argument, value)
    if not -(1 << 63) <= value < 1 << 63:
        raise ArgumentError(f"{argument}: got {value}, expected a number of 64 bits")
    return value


def _record(members: str) -> CallRecord:
    """The call that makes a group of these members. The rest of a long list counts, too."""
    if len(members) > _MOST_WORDS:
        members = f"{members[:_MOST_WORDS]} ... {digest(members):016x}"
    return CallRecord("new_group", words=members)


def _make(
    parent: Group, members: Sequence[int], joins: bool, timeout_s: float | None, name: str | None
) -> Group | NonMember:
    """Make the group of these ranks of the parent."""
    world_ranks = tuple(parent.world_ranks[rank] for rank in members)
    name = name or ranks_text(world_ranks, _MOST_NAMED)
    if not joins:
        return NonMember(name, parent.world_ranks[parent.rank], world_ranks)
    limit_s = parent.timeout_s if timeout_s is None else timeout_s
    return make_sub_group(parent, members.index(parent.rank), world_ranks, name, limit_s)
