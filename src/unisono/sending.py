"""`unisono.send`: one name for two things that are told apart by what is sent."""

from __future__ import annotations

import sys
from typing import Any

from .schedule import send as send_chunk

__all__ = ["send"]


def send(*args: Any, **kwargs: Any) -> Any:
    """send(tensor, dst, group=None, tag=0) sends a tensor to a rank: see `p2p.send`. Inside an algorithm,
    send(src, dst, chunk) is a row of its table: see `schedule.send`, which needs no torch."""
    first = args[0] if args else kwargs.get("tensor")
    torch = sys.modules.get("torch")
    row = "chunk" in kwargs or len(args) > 2
    if (torch is not None and isinstance(first, torch.Tensor)) or not row:
        from .p2p import send as send_tensor

        return send_tensor(*args, **kwargs)
    return send_chunk(*args, **kwargs)
