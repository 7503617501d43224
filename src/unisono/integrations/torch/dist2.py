"""Groups that only the program holds, made by torch's experimental `torch.distributed._dist2`."""

from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from ...base.errors import ArgumentError
from ...base.release import NAME
from .join_group import leave_when_dropped
from .process_group import UnisonoProcessGroup, create


def make_group(store: Any, rank: int, world_size: int, timeout: timedelta, device: torch.device) -> UnisonoProcessGroup:
    """The group of all that call this with the same store."""
    if device.type != "cpu":
        raise ArgumentError(f"device: got {device}, expected cpu, the only device of {NAME}")
    made: Any = c10d._DistributedBackendOptions()  # noqa: SLF001
    made.store, made.group_rank, made.group_size, made.timeout, made.group_id = store, rank, world_size, timeout, NAME
    group = create(made, None, helper={})
    leave_when_dropped(group, group.group)
    return group
