"""From arguments to checked requests, and to the words for them."""

from __future__ import annotations

from typing import Any

import torch

from ..arguments import check_root, check_tensor, shape_name
from ..engine.mailbox import ANY, Receive, Send
from ..errors import ArgumentError, DTypeError
from ..membership.group import Group

__all__ = ["check_receive", "check_send", "receive_request", "receive_text", "send_request", "send_text"]


def check_send(tensor: Any, dst: Any, group: Group, tag: Any) -> None:
    """Can this be sent?"""
    _check_message(tensor)
    check_root("dst", dst, group)
    _check_tag(tag)


def check_receive(tensor: Any, src: Any, group: Group, tag: Any) -> None:
    """Can this be received into? Not where several elements share memory, as one of them would win."""
    if tensor is not None:
        _check_message(tensor)
        if not tensor.is_contiguous() and torch._debug_has_internal_overlap(tensor) == 1:  # noqa: SLF001
            raise ArgumentError("tensor: several of its elements share memory (it is expanded); pass .contiguous()")
    if src is not None:
        check_root("src", src, group)
    _check_tag(tag)


def send_request(tensor: torch.Tensor, dst: int, group: Group, tag: int) -> Send:
    """What the mailbox is asked, once it is checked: a contiguous tensor for a rank."""
    check_send(tensor, dst, group, tag)
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return Send(tensor, dst, tag)


def receive_request(tensor: torch.Tensor | None, src: int | None, group: Group, tag: int) -> Receive:
    """What the mailbox is asked, once it is checked: a tensor from a rank or from any."""
    check_receive(tensor, src, group, tag)
    return Receive(tensor, ANY if src is None else src, tag)


def _check_message(tensor: Any) -> None:
    check_tensor("tensor", tensor)
    if tensor.is_quantized:  # a message has no scale
        raise DTypeError("tensor: quantized tensors cannot be sent; pass .int_repr()")


def _check_tag(tag: Any) -> None:
    if isinstance(tag, bool) or not isinstance(tag, int):
        raise DTypeError(f"tag: expected an integer, got {type(tag).__name__}")
    if not 0 <= tag < 1 << 63:
        raise ArgumentError(f"tag={tag}: a tag is 0 or more, and less than 2**63")


def send_text(tensor: torch.Tensor, dst: int, tag: int) -> str:
    """The call in words."""
    return f"send({shape_name(tensor)}, dst={dst}, tag={tag})"


def receive_text(tensor: torch.Tensor | None, src: int | None, tag: int) -> str:
    """The call in words."""
    return f"recv({shape_name(tensor) if tensor is not None else 'None'}, src={src}, tag={tag})"
