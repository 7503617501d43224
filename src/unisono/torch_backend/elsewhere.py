"""Backends for the tensors of other devices, beside ours for those of the CPU: "cpu:unisono,cuda:nccl"."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import distributed
from torch.distributed import PrefixStore, ProcessGroup  # type: ignore[attr-defined]  # torch's __all__ omits them

from ..errors import ArgumentError
from .register import NAME

__all__ = ["add_other_backends", "other_devices"]


def other_devices() -> dict[str, str]:
    """The backends that the user has named for other devices, by device.

    torch up to 2.13 makes a group of one backend where that is written in Python, and does not tell it of the others:
    they are read from torch's own variables. Raises ArgumentError where ours is named for another device.
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
    return {device: backend for device, backend in named.items() if device != "cpu"}


def add_other_backends(group: Any, devices: dict[str, str], options: Any) -> None:
    """Make these backends, and let the group pass the tensors of their devices on to them."""
    for device, backend in devices.items():
        store = PrefixStore(f"{device} beside {NAME}", options.store)
        where = store, options.group_rank, options.group_size
        made: Any
        if backend == "gloo":
            kind = ProcessGroup.BackendType.GLOO
            made = distributed.ProcessGroupGloo(*where, timeout=options.timeout)
        elif backend == "nccl" and distributed.is_nccl_available():
            kind = ProcessGroup.BackendType.NCCL
            settings = distributed.ProcessGroupNCCL.Options()
            settings._timeout = options.timeout  # noqa: SLF001  as torch itself does
            settings.global_ranks_in_group, settings.group_name = options.global_ranks_in_group, options.group_id
            made = distributed.ProcessGroupNCCL(*where, settings)
            made._set_sequence_number_for_group()  # noqa: SLF001
        else:
            raise ArgumentError(
                f"{device}:{backend}: beside {NAME}, only gloo and nccl are possible, where torch has them"
            )
        group._register_backend(torch.device(device), kind, made)  # noqa: SLF001
        group.elsewhere = True
