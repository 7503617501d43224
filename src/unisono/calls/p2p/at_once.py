"""The short way of messages of usual tensors: a few checks, then the mailbox moves the message, or does nothing.

Then the call goes the long way, which checks, posts, waits and raises.
"""

from __future__ import annotations

from typing import Any

from ...engine.tensors import DTYPE_CODES, mark_written, needed_by_autograd, use_count
from ...ranks.group import current
from .progress_engine import ProgressEngine

_USUAL = frozenset(dtype for dtype in DTYPE_CODES if not (dtype.is_complex or "q" in str(dtype)))
"""Not those of tensors that are conjugate, or have a scale."""
_TAGS = 1 << 63


def _engine(group: Any, tensor: Any, peer: Any, tag: Any) -> ProgressEngine | None:
    """The engine that has moved messages of the group before; None also for arguments that need a closer look."""
    try:
        if not (tensor.data_ptr() and tensor.is_contiguous() and tensor.is_cpu and tensor.dtype in _USUAL):
            return None
        if tensor.is_neg() or tensor.is_nested or peer.__class__ is not int or tag.__class__ is not int:
            return None
        engine: ProgressEngine | None = (current.default if group is None else group).progress_engine
    except (AttributeError, RuntimeError, TypeError):
        return None
    return engine if 0 <= tag < _TAGS else None


def sent_at_once(tensor: Any, dst: Any, group: Any, tag: Any) -> bool:
    """Send a tensor, if all of it fits into the ring to its receiver, and no other message waits for room."""
    engine = _engine(group, tensor, dst, tag)
    return engine is not None and engine.send_at_once(tensor, dst, tag)


def received_soon(tensor: Any, src: Any, group: Any, tag: Any, entered_ns: int, timeout_s: float | None = None) -> bool:
    """Receive a tensor, if the next message from its source is for it. Waits for this one, but not long.

    timeout_s: the most to wait; None: as long as the group does.
    """
    engine = _engine(group, tensor, src, tag)
    if engine is None or not engine.receive_soon(tensor, src, tag, entered_ns, timeout_s):
        return False
    if tensor.requires_grad or use_count(tensor) > 1:
        mark_written(needed_by_autograd((tensor,)))
    return True
