"""What a group answers to the less common questions of torch, and what it refuses, in one sentence each.

torch asks its process group, and the backend that the group has for a device. Ours is both.
"""

import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from ...base.errors import UsageError
from ...base.release import NAME
from ...ranks.group.group import Group
from .hooks import Hooks
from .to_torch import for_torch

_MEMORY = "its memory is shared memory, which stays as long as the group"
_GROUP = "call it of the process group"
_TIME = "measure calls with `unisono bench`"
REFUSED = {
    "_end_time_estimate": _TIME,
    "_register_on_completion_hook": "use the futures of works",
    "_start_time_estimate": _TIME,
    "get_reconfigure_handle": _GROUP,
    "mem_allocator": "use allocate_tensor",
    "memory_stats": "`unisono top` shows the memory of a job",
    "merge": "use merge_remote_group",
    "new_window": "use send and recv",
    "reconfigure": _GROUP,
    "resume": _MEMORY,
    "setUsePgForSymmMemRendezvous": "symmetric memory is that of GPUs",
    "split": "use split_group",
    "suspend": _MEMORY,
}
"""Methods of torch's groups and backends that ours do not have -> what to do instead."""


class Answers:
    """The questions, and the refused methods, of a group and of a backend.

    group: our group of these ranks.
    elsewhere: does the group have backends for other devices?
    hooks: the detours of its calls if it has hooks of torch.
    through_torch: may calls go through torch's dispatcher, for one of these two reasons?
    abort_hooks: id -> function to call before an abort, and before an error that says that ranks are lost or late.
    """

    group: Group
    abort_hooks: dict[int, Callable[[], None]]
    hooks: Hooks | None = None
    elsewhere = through_torch = False
    supports_coalescing = supports_splitting = supports_reconfigure = supports_window = False
    supports_time_estimate = _supports_time_estimate = False
    supports_abort_hooks, supports_completion_hooks = True, False

    def getRank(self) -> int:  # noqa: N802
        """This process's rank."""
        return self.group.rank

    def getSize(self) -> int:  # noqa: N802
        """The number of ranks."""
        return self.group.size

    rank, size = getRank, getSize

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls without a timeout of their own."""
        self.group.timeout_s = timeout.total_seconds()
        if self.elsewhere:
            super().set_timeout(timeout)  # type: ignore[misc]  # torch's

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Give the next call of other backends more time; Gloo ignores this, too."""
        warnings.warn("_add_ephemeral_timeout: calls on CPU tensors get no more time. Use set_timeout.", stacklevel=2)
        if self.elsewhere:
            super()._add_ephemeral_timeout(timeout)  # type: ignore[misc]  # torch's

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Add a hook to `abort_hooks`, for example to save what helps to find the cause."""
        self.abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Remove a hook."""
        self.abort_hooks.pop(hook_id, None)

    def get_error(self) -> c10d.ErrorType:
        """Success, as with Gloo: calls raise their errors."""
        return c10d.ErrorType.SUCCESS

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        """Do nothing: the ranks are connected from the start."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Do nothing: groups are made by their members only."""

    def _enable_collectives_timing(self) -> None:
        """Do nothing: the begin and the end of each call are logged in any case."""

    def _set_group_uid(self, uid: str) -> None:
        """Do nothing: logs and errors have the name of the group."""

    def _has_hooks(self) -> bool:
        """Are there completion hooks? No, see `_register_on_completion_hook`."""
        return False

    def _wait_for_pending_works(self) -> None:
        """Wait until the calls in the background have ended."""
        self.group.finish()


def _refusing(name: str) -> Any:
    def method(_group: Any, *_args: Any, **_options: Any) -> Any:
        raise for_torch(UsageError(f"Backend {NAME} does not support {name}: {REFUSED[name]}"))

    return property(method) if name == "mem_allocator" else method


for _name in REFUSED:
    setattr(Answers, _name, _refusing(_name))
