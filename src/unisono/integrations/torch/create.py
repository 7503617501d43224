"""Make a process group: torch calls `create` on every member of a new group.

With "cpu:unisono,cuda:nccl" the group has backends for tensors of other devices, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import distributed
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore, ProcessGroup  # type: ignore[attr-defined]  # torch's __all__ omits them

from ...base.config import Config
from ...base.errors import ArgumentError
from ...base.release import NAME
from ...ranks.rendezvous.meetings import may_come
from .join_group import join
from .patch import patch_torch
from .process_group import UnisonoProcessGroup, add_backend
from .to_torch import for_torch


def create(
    options: Any,
    pg_options: Any,
    kind: type[UnisonoProcessGroup] = UnisonoProcessGroup,
    *,
    apart: bool = False,
    why_absent: Callable[[int], str] = may_come,
) -> UnisonoProcessGroup:
    """Return the process group of these members.

    options: torch's description of the group: store, rank, size, timeout.
    pg_options: a `Config` or None; anything else is meant for the backend of another device.
    kind: the class of the process group.
    apart, why_absent: see `join`.
    """
    patch_torch()
    config = pg_options if isinstance(pg_options, Config) else None
    where = options.store, options.group_rank, options.group_size, options.group_id, options.timeout.total_seconds()
    try:
        devices = {} if apart else other_devices(kind.asked_as)
        members = options.global_ranks_in_group
        made = kind(join(*where, members, config, apart=apart, why_absent=why_absent), options.store)
        add_backend(made, made.group)
        add_other_backends(made, devices, options, None if config else pg_options)
    except BaseException as error:
        for_torch(error)
        raise
    return made


def other_devices(ours: str) -> dict[str, str]:
    """Return the backends that the user has named for devices other than the CPU, by device.

    ours: the name by which the user has asked for our group. Other devices with this name get no backend.

    torch does not pass the names on if one of the backends is a process group in Python. So they are read from the
    local variables of torch's caller. Raises ArgumentError if our backend is named for another device.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to look at one's callers
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    if frame is None:
        return {}
    named = dict(frame.f_locals["backend_config"].get_device_backend_map())
    for device, backend in named.items():
        if backend == NAME and device != "cpu":
            raise ArgumentError(f"{device}:{NAME}: this backend is for tensors of the CPU; write cpu:{NAME}")
    return {device: backend for device, backend in named.items() if device != "cpu" and backend != ours}


def add_other_backends(group: Any, devices: dict[str, str], options: Any, pg_options: Any) -> None:
    """Make these backends and register them with the group.

    options, pg_options: what torch has passed for the backends of this group; `options.store` is replaced.
    """
    store = options.store
    for device, backend in devices.items():
        options.store = PrefixStore(f"{device} beside {NAME}", store)
        kind = distributed.Backend.backend_type_map.get(backend, ProcessGroup.BackendType.CUSTOM)
        group._register_backend(torch.device(device), kind, _make(backend, options, pg_options))  # noqa: SLF001
        group.elsewhere = True


def _make(backend: str, options: Any, pg_options: Any) -> Any:
    where = options.store, options.group_rank, options.group_size
    known: Any = distributed.Backend
    if backend == "gloo":
        return c10d.ProcessGroupGloo(*where, timeout=options.timeout)
    if hasattr(known, "_ensure_backend_registered"):  # from torch 2.14 on, where Gloo and NCCL are plugins, too
        known._ensure_backend_registered(backend)  # noqa: SLF001
    plugin = known._plugins.get(backend.upper())  # noqa: SLF001
    made: Any
    if plugin is not None:
        given = (options, pg_options) if plugin.extended_api else (*where, options.timeout)
        made = plugin.creator_fn(*given)
    elif backend == "nccl":
        if not distributed.is_nccl_available():
            raise ArgumentError(f"nccl: torch {torch.__version__} was built without NCCL")
        settings = distributed.ProcessGroupNCCL.Options()
        settings._timeout = options.timeout  # noqa: SLF001  as torch itself does
        settings.global_ranks_in_group, settings.group_name = options.global_ranks_in_group, options.group_id
        made = distributed.ProcessGroupNCCL(*where, settings)
        made._set_sequence_number_for_group()  # noqa: SLF001
    else:
        raise ArgumentError(f"{backend}: torch {torch.__version__} cannot make this backend beside {NAME}")
    if isinstance(made, ProcessGroup):
        raise ArgumentError(f"{backend}: is a process group of its own, and cannot be beside {NAME}")
    return made
