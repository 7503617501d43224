"""Make a process group: torch calls `create` on every member of a new group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.config import Config
from ...ranks.rendezvous.meetings import may_come
from .join_group import join
from .other_devices import add_other_backends, other_devices
from .patch import patch_torch
from .process_group import UnisonoProcessGroup, add_backend
from .torch_errors import for_torch


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
