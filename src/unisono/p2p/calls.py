"""Send and receive, at once or in the background."""

from __future__ import annotations

from typing import overload

import torch

from ..arguments import check_apart, shape_name
from ..dispatch import default_group
from ..membership.group import Group
from ..watch import caller
from .office import post_office
from .requests import receive_request, receive_text, send_request, send_text
from .work import Transfer

__all__ = ["irecv", "isend", "recv", "send", "sendrecv"]


def send(
    tensor: torch.Tensor, dst: int, group: Group | None = None, tag: int = 0, *, timeout_s: float | None = None
) -> None:
    """Send a tensor to rank `dst`, which may be this one. Returns when the tensor may change again.

    tensor: any shape, dtype and layout. tag: 0 or more; what the receiver asks for. A short message waits in shared
    memory until it is received; a long one needs the receiver. Raises PeerGone, WaitTimeout, OutOfMemory.
    """
    group = default_group() if group is None else group
    request = send_request(tensor, dst, group, tag)
    post_office(group).complete([request], lambda: f"{send_text(tensor, dst, tag)} ({caller()})", timeout_s)


@overload
def recv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    *,
    timeout_s: float | None = None,
) -> int:
    """Into a tensor: returns the source."""


@overload
def recv(
    tensor: None = None,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    *,
    timeout_s: float | None = None,
) -> torch.Tensor:
    """Without one: returns a new tensor."""


def recv(
    tensor: torch.Tensor | None = None,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    *,
    timeout_s: float | None = None,
) -> int | torch.Tensor:
    """Receive a tensor from rank `src`, or from whichever rank was first to send one with this tag; returns the source.

    tensor: any shape and layout, the sender's dtype and number of elements; written. None: returns a new tensor, as
    the sender's; its source is told by `irecv(None, ...).source_rank()`. Raises MessageMismatch, PeerGone, WaitTimeout.
    """
    group = default_group() if group is None else group
    request = receive_request(tensor, src, group, tag)
    post_office(group).complete([request], lambda: f"{receive_text(tensor, src, tag)} ({caller()})", timeout_s)
    made = request.tensor
    return request.source if tensor is not None or made is None else made


def isend(
    tensor: torch.Tensor, dst: int, group: Group | None = None, tag: int = 0, *, timeout_s: float | None = None
) -> Transfer:
    """`send` in the background: `wait` for the Transfer before the tensor changes."""
    group = default_group() if group is None else group
    request = send_request(tensor, dst, group, tag)
    return Transfer(group, request, lambda: f"i{send_text(tensor, dst, tag)}", timeout_s)


def irecv(
    tensor: torch.Tensor | None = None,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    *,
    timeout_s: float | None = None,
) -> Transfer:
    """`recv` in the background. The Transfer has `source_rank()`, and `result()`: the tensor."""
    group = default_group() if group is None else group
    request = receive_request(tensor, src, group, tag)
    return Transfer(group, request, lambda: f"i{receive_text(tensor, src, tag)}", timeout_s)


def sendrecv(
    send_tensor: torch.Tensor,
    dst: int,
    recv_tensor: torch.Tensor,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    *,
    timeout_s: float | None = None,
) -> int:
    """Send a tensor to `dst` while receiving another from `src`; returns the source. The two share no memory."""
    group = default_group() if group is None else group
    receive, request = receive_request(recv_tensor, src, group, tag), send_request(send_tensor, dst, group, tag)
    check_apart([recv_tensor], send_tensor, None)

    def call() -> str:
        return f"sendrecv({shape_name(send_tensor)}, dst={dst}, {shape_name(recv_tensor)}, src={src}, tag={tag})"

    post_office(group).complete([request, receive], lambda: f"{call()} ({caller()})", timeout_s)
    return receive.source
