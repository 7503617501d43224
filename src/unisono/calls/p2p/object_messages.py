"""Send and receive lists of Python objects, encoded by `codec`."""

from __future__ import annotations

from typing import Any

import torch

from ...base.errors import ArgumentError, UnisonoError
from ...base.units import hints_timeout_s
from ...engine.mailbox import ANY_SOURCE, Receive, Send
from ...engine.process.nested import caller
from ...ranks.group.group import Group
from ...ranks.group.initialize import group_or_default
from ..arguments import check_list
from ..codec import decode, encode, to_tensor
from .progress_engine import progress_engine
from .send_recv import check_receive, check_send


@hints_timeout_s
def send_object_list(
    object_list: list[Any],
    dst: int,
    group: Group | None = None,
    tag: int = 0,
    *,
    pickle: bool = False,
    timeout_s: float | None = None,
) -> None:
    """Send the objects of a list to rank `dst`. Only `recv_object_list` receives them; tensors have tags of their own.

    pickle: send any object that can be pickled; the receiver must pass it, too. Without it, see `calls.codec.encode`
    for the types that can be sent. Raises DTypeError for an object that cannot be sent, and as `send` does.
    """
    group = group_or_default(group)
    check_list("object_list", object_list)
    message = to_tensor(encode(object_list, pickle=pickle))
    check_send(message, dst, group, tag)
    words = f"send_object_list({len(object_list)} objects, dst={dst}, tag={tag})"
    progress_engine(group).complete([Send(message, dst, _tag(tag))], lambda: f"{words} ({caller()})", timeout_s)


@hints_timeout_s
def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    *,
    pickle: bool = False,
    timeout_s: float | None = None,
) -> int:
    """Receive objects from rank `src`, or from the rank that was first to send some with this tag; returns the source.

    object_list: as long as the sender's; its items are replaced. pickle: accept pickled objects, which can run any
    code. Raises ArgumentError for a list of another length and for bytes that cannot be decoded, which drops the
    message; otherwise as `recv` does.
    """
    group = group_or_default(group)
    check_list("object_list", object_list)
    check_receive(None, src, group, tag)
    request = Receive(None, ANY_SOURCE if src is None else src, _tag(tag))
    words = f"recv_object_list({len(object_list)} objects, src={src}, tag={tag})"
    progress_engine(group).complete([request], lambda: f"{words} ({caller()})", timeout_s)
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


def _tag(tag: int) -> int:
    """The tag of the message: below 0, because tags of tensors are not."""
    return -1 - tag
