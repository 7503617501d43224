"""Several sends and receives at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..dispatch import default_group
from ..errors import ArgumentError, DTypeError
from ..membership.group import Group
from .calls import irecv, isend
from .requests import check_receive, check_send
from .work import Transfer

__all__ = ["P2POp", "batch_isend_irecv"]


class P2POp:
    """One operation of a batch: `isend` of a tensor to a peer, or `irecv` from it. Checked when it is made."""

    def __init__(
        self,
        op: Callable[..., Transfer],
        tensor: torch.Tensor,
        peer: int,
        group: Group | None = None,
        tag: int = 0,
    ) -> None:
        group = default_group() if group is None else group
        if op is isend:
            check_send(tensor, peer, group, tag)
        elif op is irecv:
            check_receive(tensor, peer, group, tag)
        else:
            raise ArgumentError(f"op: expected unisono's isend or irecv, got {op!r}")
        self.op, self.tensor, self.peer, self.group, self.tag = op, tensor, peer, group, tag


def batch_isend_irecv(p2p_op_list: Sequence[P2POp], *, timeout_s: float | None = None) -> list[Transfer]:
    """Begin with all of them, in this order, and return a Transfer for each. They may be in any order on the peers."""
    for k, op in enumerate(p2p_op_list):
        if not isinstance(op, P2POp):
            raise DTypeError(f"p2p_op_list[{k}]: expected a P2POp, got {type(op).__name__}")
    return [op.op(op.tensor, op.peer, op.group, op.tag, timeout_s=timeout_s) for op in p2p_op_list]
