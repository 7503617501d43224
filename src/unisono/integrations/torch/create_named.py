"""Make our group from the arguments of torch's ProcessGroupGloo; or Gloo's group, if the ranks cannot have ours."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from types import FrameType
from typing import Any

from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from ...base.errors import ArgumentError, OutOfMemory
from ...base.release import NAME
from ...hosts.carriers.ucx_library import NoUcx
from ...ranks.rendezvous.asked_store import AskedStore
from ...ranks.rendezvous.participant import may_come
from .join_group import leave_when_dropped, whole_world
from .named_gloo import NamedGloo, registering_ours
from .patch import change
from .process_group import create

_LOG = logging.getLogger(NAME)
_HELPER, _WRAPPER = "_new_process_group_helper", "_create_process_group_wrapper"
_GIVEN_UP = f"{NAME} given up {{}}"
_GLOO_KEY = "0/{}"
"""The key of the address of a rank in Gloo's group, by its number, in the group's store. Seen in torch 2.13."""


def make_named(caller: FrameType, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Make a group from the arguments of torch's ProcessGroupGloo: store, rank, size, and a timeout or options.

    caller: the frame that makes it: torch's function, which knows the group's name and members, or a program's.

    Returns Gloo's own group, with a warning, if some ranks have no UNISONO_AS=gloo, if no memory is left for our group
    of all ranks, or if it needs UCX, which is not installed. Otherwise errors of our group are raised.
    """
    given = _helper_of(caller)
    named = given["backend_config"].get_device_backend_map() if given else {"cpu": "gloo"}
    if caller.f_code.co_name == _WRAPPER or named.get("cpu") != "gloo":
        return c10d.ProcessGroupGloo(*args, **options)  # part of another group, or for other tensors
    try:
        described = _described(given, *args, **options)
    except TypeError:
        return c10d.ProcessGroupGloo(*args, **options)  # it raises its own error for these arguments
    members = described.global_ranks_in_group or range(described.group_size)
    deadline = time.monotonic() + described.timeout.total_seconds()
    with closing(_GloosRanks(AskedStore(described.store, described.group_rank, deadline), members)) as others:
        try:
            all_have_the_name = described.global_ranks_in_group and isinstance(
                distributed_c10d.GroupMember.WORLD, NamedGloo
            )
            why_absent = may_come if all_have_the_name else others.why_absent
            made = create(described, given.get("backend_options"), NamedGloo, helper=given, why_absent=why_absent)
        except (OutOfMemory, NoUcx) as error:
            if described.global_ranks_in_group and whole_world() is not None:
                raise  # a host lends its own memory to a sub-group of the world: others may have some
            why = " ".join(str(error).split())
        except ArgumentError as error:
            if not others.why():
                raise
            why = str(error)
        else:
            if not given:
                leave_when_dropped(made, made.group)
            return made
        others.give_up(described.group_rank)
    _LOG.warning("the group %s is Gloo's on all ranks: %s", described.group_id, why)
    return c10d.ProcessGroupGloo(*args, **options)


def _helper_of(frame: FrameType | None) -> Mapping[str, Any]:
    """The local variables of torch's function that makes process groups; empty if a program is the caller."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("torch.distributed"):
        if frame.f_code.co_name == _HELPER:
            return frame.f_locals
        frame = frame.f_back
    return {}


def _described(
    given: Mapping[str, Any],
    store: Any,
    rank: int,
    size: int,
    more: Any = None,
    *,
    timeout: timedelta = timedelta(minutes=30),
    options: Any = None,
    enable_reconfigure: bool = False,
) -> Any:
    """The arguments, in either form of torch's class, as torch describes a group to a backend."""
    made: Any = c10d._DistributedBackendOptions()  # noqa: SLF001
    made.store, made.group_rank, made.group_size = store, rank, size
    chosen = more if options is None else options
    made.timeout = chosen if isinstance(chosen, timedelta) else timeout if chosen is None else chosen._timeout  # noqa: SLF001
    if enable_reconfigure or getattr(chosen, "enable_reconfigure", False):  # from torch 2.14 on
        made.enable_reconfigure = True
    made.group_id = given.get("group_name", "ProcessGroupGloo")
    made.global_ranks_in_group = given.get("global_ranks_in_group", [])
    return made


class _GloosRanks:
    """The ranks that make Gloo's group while others make our group, at the same store.

    A rank in Gloo's group puts its address into the store at once, and then waits for the addresses of the others.
    members: the ranks' numbers in the group of all ranks, for messages.
    """

    def __init__(self, store: AskedStore, members: Sequence[int]) -> None:
        self._store, self._members = store, members
        self.close = store.close

    def why_absent(self, rank: int) -> str:
        """Why this rank will not make our group; empty if it may."""
        return self.why() if self._has(_GLOO_KEY, rank) else ""

    def why(self) -> str:
        """Which ranks at the store make Gloo's group, in words; empty: none."""
        wanted = [self._has(_GLOO_KEY, rank) and not self._has(_GIVEN_UP, rank) for rank in range(len(self._members))]
        found = [member for member, gloo in zip(self._members, wanted, strict=True) if gloo]
        if not found:
            return ""
        has = "ranks {} have" if len(found) > 1 else "rank {} has"
        return (
            f"{has.format(', '.join(map(str, found)))} come without UNISONO_AS=gloo, or with a torch in which it does "
            "not work. Set it for all ranks, as in: UNISONO_AS=gloo torchrun train.py"
        )

    def give_up(self, rank: int) -> None:
        """Tell the other ranks that this one wanted our group."""
        self._store.set(_GIVEN_UP.format(rank), "")

    def _has(self, key: str, rank: int) -> bool:
        return self._store.check([key.format(rank)])


def _leaving_ours(original: Any) -> Any:
    """Let torch's wrapper for TORCH_DISTRIBUTED_DEBUG=DETAIL leave out our groups: they compare calls anyway."""

    def create_process_group_wrapper(wrapped_pg: Any, *args: Any, **options: Any) -> Any:
        return wrapped_pg if isinstance(wrapped_pg, NamedGloo) else original(wrapped_pg, *args, **options)

    return create_process_group_wrapper


change(_leaving_ours, _WRAPPER, distributed_c10d)
change(registering_ours, "_register_backend", c10d.ProcessGroup)
