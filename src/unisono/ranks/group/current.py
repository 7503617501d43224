"""The default group of this process, which calls without a group use; and what stands for a group on other ranks."""

from __future__ import annotations

from typing import Any, Literal

from ...base.errors import ArgumentError
from .group import Group

default: Group | None = None
_in_run = False


def get_default() -> Group | None:
    """The default group of this process, or None."""
    return default


def set_default(group: Group | None) -> None:
    global default  # noqa: PLW0603  a process has one default group
    default = group


class _NotMember(ArgumentError, AttributeError):
    """What a `NonMember` raises: an AttributeError, too, so that `hasattr` and `getattr` with a default work on it."""


class NonMember:
    """What `new_group` and `split` return on ranks that the new group leaves out.

    It is false, so that `if group:` guards calls. Any call on it raises ArgumentError.

    world_ranks: the members, as ranks of the world.
    """

    def __init__(self, name: str, world_rank: int, world_ranks: tuple[int, ...]) -> None:
        self.name, self.world_rank, self.world_ranks = name, world_rank, world_ranks

    def __bool__(self) -> Literal[False]:
        return False

    def close(self) -> None:
        """Does nothing."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)  # Python's own protocols must find no method
        raise _NotMember(f"rank {self.world_rank} is not in group {self.name!r}. Make the call under `if group:`.")

    def __repr__(self) -> str:
        return f"NonMember({self.name!r}, rank {self.world_rank} of the world)"


def is_initialized() -> bool:
    """Does this process have a default group?"""
    return default is not None


def join_run(group: Group) -> None:
    """Make this the default group of a process that is a rank of `run` or of a world."""
    global _in_run  # noqa: PLW0603  a process is a rank of one run at most
    _in_run = True
    set_default(group)


def is_in_run() -> bool:
    """Is this process a rank of `run` or of a world?"""
    return _in_run
