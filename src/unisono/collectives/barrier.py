"""barrier: no rank goes on before all have come."""

from __future__ import annotations

from typing import Any

import torch

from ..dispatch import Request, default_group, perform
from ..membership.group import Group
from ..work import Work

__all__ = ["barrier"]


def barrier(
    group: Group | None = None, async_op: bool = False, *, algorithm: Any = None, timeout_s: float | None = None
) -> Work | None:
    """Return when every rank of the group has called this."""
    group = default_group() if group is None else group
    nothing = torch.empty(0)
    request = Request("barrier", nothing, nothing, nothing, in_place=True)
    return perform(group, request, async_op, algorithm, timeout_s)
