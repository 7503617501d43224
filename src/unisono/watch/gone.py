"""Find out whether a peer has gone."""

from __future__ import annotations

from ..membership.group import Group
from ..records import Departure

__all__ = ["gone"]


def gone(group: Group, rank: int) -> Departure | None:
    """How a peer has gone; None if it is still there."""
    return group.presence.gone(rank)
