"""The arguments of point-to-point calls, checked, as requests to the mailbox, and as text for errors."""

from __future__ import annotations

from typing import Any

import torch

from ...base.errors import ArgumentError, DTypeError
from ...engine.mailbox import ANY_SOURCE, Receive, Send
from ...engine.tensors import make_plain
from ...ranks.group.group import Group
from ..arguments import check_root, check_tensor, shape_name


def check_send(tensor: Any, dst: Any, group: Group, tag: Any) -> None:
    """Raise ArgumentError or DTypeError unless rank `dst` can be sent this tensor."""
    _check_message(tensor, written=False)
    check_root("dst", dst, group)
    _check_tag(tag)


def check_receive(tensor: Any, src: Any, group: Group, tag: Any) -> None:
    """Raise ArgumentError or DTypeError unless this tensor can be received into from rank `src`; None: from any."""
    if tensor is not None:
        _check_message(tensor, written=True)
    if src is not None:
        check_root("src", src, group)
    _check_tag(tag)


def send_request(tensor: torch.Tensor, dst: int, group: Group, tag: int) -> Send:
    """A request, with a copy of the tensor if its elements do not lie in order. Raises as `check_send` does."""
    check_send(tensor, dst, group, tag)
    return Send(make_plain(tensor), dst, tag)


def receive_request(tensor: torch.Tensor | None, src: int | None, group: Group, tag: int) -> Receive:
    """A request. Raises as `check_receive` does."""
    check_receive(tensor, src, group, tag)
    return Receive(tensor, ANY_SOURCE if src is None else src, tag)


def _check_message(tensor: Any, *, written: bool) -> None:
    check_tensor("tensor", tensor, written=written)
    if tensor.is_quantized:  # a message has no scale
        raise DTypeError("tensor: quantized tensors cannot be sent; pass .int_repr()")


def _check_tag(tag: Any) -> None:
    if isinstance(tag, bool) or not isinstance(tag, int):
        raise DTypeError(f"tag: expected an integer, got {type(tag).__name__}")
    if not 0 <= tag < 1 << 63:
        raise ArgumentError(f"tag={tag}: a tag is 0 or more, and less than 2**63")


def send_text(tensor: torch.Tensor, dst: int, tag: int) -> str:
    """A send as text: `send(float32[3], dst=1, tag=0)`."""
    return f"send({shape_name(tensor)}, dst={dst}, tag={tag})"


def receive_text(tensor: torch.Tensor | None, src: int | None, tag: int) -> str:
    """A receive as text: `recv(float32[3], src=1, tag=0)`."""
    return f"recv({shape_name(tensor) if tensor is not None else 'None'}, src={src}, tag={tag})"
