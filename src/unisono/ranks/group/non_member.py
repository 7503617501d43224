"""The value that stands for a group on ranks that are not its members."""

from __future__ import annotations

from typing import Any, Literal

from ...base.errors import ArgumentError


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
        raise ArgumentError(
            f"rank {self.world_rank} is no member of group {self.name!r}: make its calls under `if group:`"
        )

    def __repr__(self) -> str:
        return f"NonMember({self.name!r}, rank {self.world_rank} of the world)"
