"""Lists of Python objects from one rank to another, by the safe codec."""

from __future__ import annotations

from typing import Any

import torch

from ..codec import decode, encode, fill
from ..dispatch import default_group
from ..engine.mailbox import ANY, Receive, Send
from ..errors import ArgumentError, DTypeError, UnisonoError
from ..membership.group import Group
from ..watch import caller
from .office import post_office
from .requests import check_receive, check_send

__all__ = ["recv_object_list", "send_object_list"]


def send_object_list(
    object_list: list[Any],
    dst: int,
    group: Group | None = None,
    tag: int = 0,
    *,
    pickle: bool = False,
    timeout_s: float | None = None,
) -> None:
    """Send the objects of a list to rank `dst`. Objects and tensors have tags of their own.

    pickle: send what the safe codec does not know, too; the receiver must pass it as well. See `codec.encode`.
    """
    group = default_group() if group is None else group
    _check_list(object_list)
    payload = encode(object_list, pickle=pickle)
    message = torch.empty(sum(map(len, payload)), dtype=torch.uint8, device="cpu")
    fill(message, payload)
    check_send(message, dst, group, tag)
    words = f"send_object_list({len(object_list)} objects, dst={dst}, tag={tag})"
    post_office(group).complete([Send(message, dst, _tag(tag))], lambda: f"{words} ({caller()})", timeout_s)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    *,
    pickle: bool = False,
    timeout_s: float | None = None,
) -> int:
    """Fill a list with the objects that rank `src` sent, or whichever rank was first to send some; returns the source.

    object_list: as long as the sender's; what is in it is replaced. Raises ArgumentError for another length, and for
    bytes that are no objects, which never run code; the message is gone then.
    """
    group = default_group() if group is None else group
    _check_list(object_list)
    check_receive(None, src, group, tag)
    request = Receive(None, ANY if src is None else src, _tag(tag))
    words = f"recv_object_list({len(object_list)} objects, src={src}, tag={tag})"
    post_office(group).complete([request], lambda: f"{words} ({caller()})", timeout_s)
    message = request.tensor if request.tensor is not None else torch.empty(0, dtype=torch.uint8, device="cpu")
    try:
        objects = decode(message.numpy().data, pickle=pickle)
    except UnisonoError as error:
        raise ArgumentError(f"what rank {request.source} sent cannot be decoded here: {error}") from error
    if len(objects) != len(object_list):
        raise ArgumentError(
            f"object_list: has {len(object_list)} places, but rank {request.source} sent {len(objects)} objects: pass "
            "a list of as many"
        )
    object_list[:] = objects
    return request.source


def _check_list(objects: Any) -> None:
    if not isinstance(objects, list):
        raise DTypeError(f"object_list: expected a list, got {type(objects).__name__}")


def _tag(tag: int) -> int:
    """Below 0, where no tensor's tag is."""
    return -1 - tag
