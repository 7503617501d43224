"""`watch()`: ranks whose groups are Gloo's or NCCL's know of each other what ranks of this library's groups know.

`UNISONO_WATCH=1` in the environment does the same at the end of `import torch`. torch's functions that make and destroy
groups are changed: beside each group there is one of ours (`watched_calls`), and a thread looks at all (`watcher`).
"""

import atexit
import logging
import os
import re
import sys
import time
from contextlib import closing, suppress
from typing import Any

from torch import distributed
from torch.distributed import PrefixStore, distributed_c10d

from ...base.errors import ArgumentError, UnisonoError
from ...base.python import tell
from ...base.units import ranks_text
from ...ranks.group.group import Group
from ...ranks.group.sub_groups import make_sub_group
from ...ranks.group.world_group import leave_at_exit
from ...ranks.rendezvous.asked_store import AskedStore
from ...ranks.rendezvous.launchers import start_of_job
from .flight_recorder import NCCL
from .gloo_sockets import connections
from .group_methods import Calls
from .join_group import join, leave
from .patch import change
from .watched_calls import WatchedGroup, groups, patch_calls
from .watcher import Watcher

_COME_S = 30.0
"""How long ranks wait for each other, when torch has made its group. NCCL makes it without waiting for any."""
_CONNECTED_S = 1.0  # the same if torch has connected them: then all have come
_PAUSE_S = 0.005
_NAMES = re.compile(r"\w+")
_MOST_NAMED = 8

_watchers: dict[Group, Watcher] = {}
"""Our group of the ranks of a world of torch's -> what watches this world."""


def watch() -> None:
    """Watch the Gloo and NCCL groups that this program makes from now on. All ranks call it. Idempotent.

    Call it before `init_process_group`. It sets UNISONO_WATCH=1, so processes that this one starts do the same. A
    program that is started with UNISONO_WATCH=1 needs no call.

    A call of `torch.distributed` then raises PeerGone within a second when a rank that it waits for has died, and
    MismatchError when ranks make different calls; both are RuntimeErrors, too. Waits inside C++ raise torch's own
    error. After 5 s (`UNISONO_STALL_WARNING_S`) a waiting call prints the rank that it waits for, with its stack.
    `unisono top` and `unisono doctor` show the job.

    Raises:
        ArgumentError: A process group exists already.

    Example::

        unisono.watch()
        dist.init_process_group("gloo")  # unchanged, like the rest of the program
    """
    if not _patched() and distributed.is_available() and distributed.is_initialized():
        raise ArgumentError(
            "watch: a process group exists already. Call this before init_process_group, or set UNISONO_WATCH=1 in "
            "the environment."
        )
    patch()
    os.environ["UNISONO_WATCH"] = "1"


def _patched() -> bool:
    return hasattr(distributed_c10d._new_process_group_helper, "_unisono")  # noqa: SLF001


def patch() -> None:
    """Change torch's functions. Groups that are there already are not watched."""
    if distributed.is_available():
        change(_making, "_new_process_group_helper", distributed_c10d)
        change(_destroying, "destroy_process_group", distributed, distributed_c10d)
        patch_calls(_cause)


def _cause(watched: WatchedGroup) -> Any:
    watcher = _watchers.get(watched.group.world)
    return watcher and watcher.cause(watched)


def _making(original: Any) -> Any:
    def new_process_group_helper(
        size: int, rank: int, members: Any, backend: Any, store: Any, *args: Any, **options: Any
    ) -> Any:
        start = start_of_job(os.environ) if options.get("group_desc") == "default_pg" else ""  # others are of any job
        mine = None if members or size == 1 else PrefixStore(f"unisono watches {start}", store)
        fake = "fake" in _NAMES.findall(f"{backend}")  # this process stands for all ranks
        if mine is not None and not fake:
            mine.set(f"{rank}", "")
        before = set(connections())
        made = original(size, rank, members, backend, store, *args, **options)
        group: Any = made[0]
        if made[1] is not None and not fake and not isinstance(group, Calls):  # this rank is a member
            sockets = [one for one in connections() if one not in before]
            try:
                ours = _group_of(group, mine, list(members), rank, size, connected=bool(sockets))
            except UnisonoError as error:
                tell(f"unisono: group {group.group_name!r} is not watched: {error}\n")
            else:
                if ours is not None:
                    groups[id(group)] = WatchedGroup(group, ours, sockets)
        return made

    return new_process_group_helper


def _group_of(group: Any, store: Any, members: list[int], rank: int, size: int, *, connected: bool) -> Group | None:
    """Our group of the ranks of torch's group; None: it is not watched."""
    if store is None:
        whole = groups.get(id(distributed.group.WORLD))
        if size == 1 or whole is None or whole.group.closed:
            return None
        return make_sub_group(whole.group, group.rank(), members, group.group_name, _COME_S)
    if absent := _absent(store, rank, size, _CONNECTED_S if connected else _COME_S):
        tell(
            f"unisono: {ranks_text(absent, _MOST_NAMED)} {'is' if len(absent) == 1 else 'are'} not watched, so no rank "
            "is: all ranks call unisono.watch(), or have UNISONO_WATCH=1 in the environment\n"
        )
        return None
    world = join(store, rank, size, group.group_name, _COME_S, apart=True)
    if world.span is not None:
        leave(world)
        tell("unisono: ranks on several hosts are not watched: this version can watch the ranks of one host only\n")
        return None
    _watchers[world] = Watcher(world)
    return world


def _absent(store: Any, rank: int, size: int, most_s: float) -> list[int]:
    """The ranks that do not watch. They say so before torch makes the group."""
    until, left = time.monotonic() + most_s, list(range(size))
    with closing(AskedStore(store, rank, until)) as asked:
        while left := [one for one in left if not asked.check([f"{one}"])]:
            if time.monotonic() > until:
                break
            time.sleep(_PAUSE_S)
    return left


def _destroying(original: Any) -> Any:
    def destroy_process_group(group: Any = None) -> None:
        for number, watched in list(groups.items()):
            if group in (None, watched.of(), distributed.group.WORLD):
                groups.pop(number, None)
                _watchers.pop(watched.group, None)
                leave(watched.group)
        original(group)

    return destroy_process_group


@atexit.register  # after `join_group` has registered the function that leaves, which therefore runs later
def _last_look() -> None:
    error = getattr(sys, "last_value", None)
    for watcher in list(_watchers.values()):
        watcher.last_look(error)
    if error is not None and any(one.failed and one.backend == NCCL for one in groups.values()):
        for world in list(_watchers):
            leave_at_exit(world)
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # it may be closed, or None
                stream.flush()
        os._exit(1)  # torch's threads of a group of NCCL that has failed end the process by a signal
