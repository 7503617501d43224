"""What torch calls on the members of a new group."""

from __future__ import annotations

from typing import Any

from ..config import Config
from .backend import add_backend
from .elsewhere import add_other_backends, other_devices
from .meeting import join
from .patch import patch_torch
from .process_group import UnisonoProcessGroup
from .trouble import for_torch

__all__ = ["create"]


def create(options: Any, pg_options: Any) -> UnisonoProcessGroup:
    """A group of these members. pg_options: a `Config`, or None; others are another backend's."""
    patch_torch()
    config = pg_options if isinstance(pg_options, Config) else None
    where = options.store, options.group_rank, options.group_size, options.group_id, options.timeout.total_seconds()
    try:
        devices = other_devices()
        made = UnisonoProcessGroup(join(*where, options.global_ranks_in_group, config), options.store)
        add_backend(made, made.group)
        add_other_backends(made, devices, options, None if config else pg_options)
    except BaseException as error:
        for_torch(error)
        raise
    return made
