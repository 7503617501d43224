"""Who takes part: launchers, rendezvous, groups, and local worlds."""

from __future__ import annotations

from .current import get_default, is_initialized, set_default
from .group import Group
from .here import empty, get_rank, get_world_size, share_
from .initialize import init, shutdown
from .launch import World, run, world
from .non_member import NonMember

__all__ = [
    "Group",
    "NonMember",
    "World",
    "empty",
    "get_default",
    "get_rank",
    "get_world_size",
    "init",
    "is_initialized",
    "run",
    "set_default",
    "share_",
    "shutdown",
    "world",
]
