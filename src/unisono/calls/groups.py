"""Sub-groups: groups of some ranks of a parent group.

`new_group` and `split` are calls of the parent: every rank of the parent makes them, in order with its other calls. A
sub-group has its own order of calls, its own rank numbers (an argument such as `src` is a rank of the sub-group) and
its own failures. It opens no descriptor and maps no memory, so hundreds of sub-groups are cheap. Tensors of
`unisono.empty` are zero copy in all groups.

    row = unisono.split(color=rank // columns)
    unisono.all_reduce(tensor, group=row)

A rank that is not in the new group gets a `NonMember`, which is false: guard calls with `if group:`.
"""

import struct
from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch

from ..base.errors import ArgumentError, DTypeError, MismatchError
from ..base.records import CallRecord, digest
from ..base.units import integer, ranks_text, seconds, text
from ..engine.process.nested import caller
from ..ranks.failures.attend import odd_ones
from ..ranks.group.current import NonMember, get_default
from ..ranks.group.group import Group
from ..ranks.group.initialize import group_or_default, shutdown
from ..ranks.group.sub_groups import make_sub_group
from .collectives.all_gather import all_gather_single

_RECORD_BYTES, _MOST_WORDS, _MOST_PATH = 1008, 560, 240
_SAID = struct.Struct(f"<qq{_RECORD_BYTES}s")
"""What each rank of the parent sends to all: color, key, and the call as a record."""

_NO_COLOR = -1
_MOST_NAMED = 6


def new_group(
    ranks: Iterable[int] | None = None,
    *,
    group: Group | None = None,
    timeout_s: float | None = None,
    name: str | None = None,
) -> Group | NonMember:
    """Make a group of these ranks; every rank of the parent makes this call, with the same ranks.

    ranks: ranks of the parent, in any order; the new group has them in ascending order, as in torch. None: all ranks.
    group: the parent; None: the default group.
    timeout_s: how long calls of the new group wait; None: as long as the parent's.

    Returns the group on its members. On other ranks returns a `NonMember`, which is false and refuses calls. Raises
    MismatchError on every rank if they name different ranks, ArgumentError for ranks that the parent does not have, and
    on the group's members OutOfMemory if the shared memory is used up. After these errors the parent can be used again.
    """
    parent = _usable(group)
    chosen: list[int] = []
    refused: Exception | None = None
    try:
        timeout_s = _check_timeout_and_name(timeout_s, name)
        chosen = list(range(parent.size)) if ranks is None else _check_ranks(ranks, parent)
    except Exception as error:  # noqa: BLE001  `_agree` raises it
        refused = error
    _agree(parent, CallRecord("new_group", words=f"{chosen}"), refused)
    return _make(parent, chosen, parent.rank in chosen, timeout_s, name)


def split(
    color: int | None,
    key: int = 0,
    *,
    group: Group | None = None,
    timeout_s: float | None = None,
    name: str | None = None,
) -> Group | NonMember:
    """Make a group of all ranks that pass the same color, as MPI_Comm_split; every rank of the parent calls this.

    color: 0 or more; None or negative: this rank is in no new group, and gets a NonMember.
    key: members are ordered by key, and by rank in the parent if keys are equal.

    group, timeout_s, name and errors: as in `new_group`.
    """
    parent = _usable(group)
    refused: Exception | None = None
    try:
        timeout_s = _check_timeout_and_name(timeout_s, name)
        mine = max(_NO_COLOR, _NO_COLOR if color is None else _check_word("color", color)), _check_word("key", key)
    except Exception as error:  # noqa: BLE001  `_agree` raises it
        mine, refused = (_NO_COLOR, 0), error
    told = _agree(parent, CallRecord("split", words="..."), refused, *mine)
    joins = mine[0] != _NO_COLOR
    members = sorted((r for r, (c, _) in enumerate(told) if joins and c == mine[0]), key=lambda r: told[r][1])
    return _make(parent, members, joins, timeout_s, name)


def destroy_group(group: Group | NonMember) -> None:
    """Leave a group, after this rank's asynchronous calls in it have ended. Waits for no other rank.

    The group's memory is freed when the last member has left. For the default group: the same as `shutdown()`.
    """
    if not isinstance(group, (Group, NonMember)):
        raise DTypeError(f"group: expected a Group, got {type(group).__name__}")
    if group is get_default():
        shutdown()
    else:
        group.close()


def get_global_rank(group: Group | NonMember, group_rank: int) -> int:
    """The rank in the world of a rank of the group. Raises ArgumentError if the group has no such rank."""
    group_rank = integer("group_rank", group_rank, "a rank")
    if not 0 <= group_rank < len(group.world_ranks):
        raise ArgumentError(f"group_rank={group_rank}: group {group.name!r} has {len(group.world_ranks)} ranks")
    return group.world_ranks[group_rank]


def get_group_rank(group: Group | NonMember, global_rank: int) -> int:
    """The rank in the group of a rank of the world. Raises ArgumentError if it is not a member."""
    global_rank = integer("global_rank", global_rank, "a rank")
    if global_rank not in group.world_ranks:
        raise ArgumentError(
            f"global_rank={global_rank}: the members of group {group.name!r} are ranks {list(group.world_ranks)}"
        )
    return group.world_ranks.index(global_rank)


def get_process_group_ranks(group: Group | NonMember | None = None) -> list[int]:
    """The members of the group (None: the default group), in order, as ranks of the world."""
    return list(group_or_default(group).world_ranks)


def _usable(group: Group | None) -> Group:
    parent = group_or_default(group)
    parent.check_usable()
    return parent


def _check_timeout_and_name(timeout_s: float | timedelta | None, name: str | None) -> float | None:
    if name is not None:
        text("name", name)
    return None if timeout_s is None else seconds(timeout_s, positive=True)


def _check_ranks(ranks: Iterable[int], parent: Group) -> list[int]:
    if not isinstance(ranks, Iterable):
        raise DTypeError(f"ranks: expected a list of ranks, got {type(ranks).__name__}")
    chosen = [integer("ranks", rank) for rank in ranks]
    for rank in chosen:
        if not 0 <= rank < parent.size:
            raise ArgumentError(f"ranks: there is no rank {rank} among the {parent.size} of group {parent.name!r}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ArgumentError(f"ranks: a group has at least one rank, and each once; got {chosen}")
    return sorted(chosen)


def _check_word(argument: str, value: int) -> int:
    value = integer(argument, value)
    if not -(1 << 63) <= value < 1 << 63:
        raise ArgumentError(f"{argument}={value} does not fit into 64 bits")
    return value


def _agree(
    parent: Group, call: CallRecord, refused: Exception | None, color: int = _NO_COLOR, key: int = 0
) -> list[tuple[int, int]]:
    """All ranks' (color, key). Raises `refused` if given, and MismatchError if the ranks' calls differ."""
    words = call.words
    if len(words) > _MOST_WORDS:
        words = f"{words[:_MOST_WORDS]} ... {digest(words):016x}"
    refusal = "" if refused is None else (f"{refused}" or type(refused).__name__)[:_MOST_WORDS]
    record = call._replace(words=words, refused=refusal, where=caller()[-_MOST_PATH:])
    mine = bytearray(_SAID.pack(color, key, record.pack(_RECORD_BYTES)))
    table = torch.empty(parent.size, len(mine), dtype=torch.uint8, device="cpu")
    all_gather_single(table, torch.frombuffer(mine, dtype=torch.uint8), parent)
    told = [_SAID.unpack(row.tobytes()) for row in table.numpy()]
    number = parent.host.call_number - 1
    if refused is not None:
        raise refused
    calls = {rank: CallRecord.unpack(packed.rstrip(b"\0")) for rank, (_, _, packed) in enumerate(told)}
    if odd := odd_ones(calls):
        raise MismatchError(number, calls, odd, parent.named)
    return [(color, key) for color, key, _ in told]


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
