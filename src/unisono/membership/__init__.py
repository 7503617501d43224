"""Who takes part: launchers, rendezvous, groups."""

from __future__ import annotations

from .current import get_default, is_initialized, set_default
from .group import Group
from .initialize import get_rank, get_world_size, group_or_default, init, shutdown
from .newcomer import join
from .non_member import NonMember
from .shared_tensors import empty, share_

__all__ = [
    "Group", "NonMember", "empty", "get_default", "get_rank", "get_world_size", "group_or_default", "init",
    "is_initialized", "join", "set_default", "share_", "shutdown",
]  # fmt: skip
