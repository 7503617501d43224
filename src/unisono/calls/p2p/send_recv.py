"""Send and receive tensors: blocking, asynchronous, and several at once; and lists of objects, encoded by `codec`."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...base.errors import ArgumentError, DTypeError
from ...base.units import integer, seconds
from ...engine.kernels.ring_buffer import MOST_DIMENSIONS
from ...engine.mailbox import ANY_SOURCE, Receive, Send
from ...engine.tensors import make_plain
from ...ranks.group.group import Group
from ...ranks.group.initialize import group_or_default
from ..arguments import check_apart, check_list, check_root, check_tensor
from ..codec import decode_into, encode
from .at_once import received_soon, sent_at_once, usual
from .progress_engine import progress_engine
from .transfer import FinishedTransfer, Transfer

_FIRST = -1
"""The tag of a list of objects with tag 0; later ones are below it, because tags of tensors are not."""


def send_request(tensor: Any, dst: Any, group: Group, tag: Any) -> Send:
    """A request, with a copy of the tensor if its elements do not lie in order.

    Raises ArgumentError or DTypeError unless this tensor can be sent to rank `dst`.
    """
    _check_message(tensor, written=False)
    if tensor.dim() > MOST_DIMENSIONS:
        raise ArgumentError(
            f"tensor: got {tensor.dim()} dimensions, expected at most {MOST_DIMENSIONS} in a message. Pass .flatten()."
        )
    return Send(make_plain(tensor), check_root("dst", dst, group), _check_tag(tag))


def receive_request(tensor: Any, src: Any, group: Group, tag: Any) -> Receive:
    """A request. Raises ArgumentError or DTypeError unless this tensor can receive from `src`; None: any."""
    if usual(tensor, src, group, tag) is None:
        if tensor is not None:
            _check_message(tensor, written=True)
        src, tag = ANY_SOURCE if src is None else check_root("src", src, group), _check_tag(tag)
    return Receive(tensor, src, tag)


def _check_message(tensor: Any, *, written: bool) -> None:
    check_tensor("tensor", tensor, written=written)
    if tensor.is_quantized:  # a message has no scale
        raise DTypeError("tensor: got a quantized tensor, which cannot be sent. Pass .int_repr().")


def _check_tag(tag: Any) -> int:
    number = integer("tag", tag)
    if not 0 <= number < 1 << 63:
        raise ArgumentError(f"tag: got {number}, expected 0 or more, and less than 2**63")
    return number


def _limit(timeout_s: Any) -> float | None:
    return None if timeout_s is None else seconds(timeout_s)


def send(
    tensor: torch.Tensor, dst: int, group: Group | None = None, tag: int = 0, *, timeout_s: float | None = None
) -> None:
    """Send a tensor to rank `dst`. Returns when the tensor may change again.

    A short message waits in shared memory until it is received; a long one waits for the receiver. Ranks may send to
    each other at the same time, and to themselves.

    Args:
        tensor: CPU tensor of any shape, dtype and layout.
        dst: The receiver.
        group: None: the default group.
        tag: From 0 to `2**63 - 1`. Only a receive with the same tag gets the message.
        timeout_s: Seconds to wait for the receiver. None: the group's `timeout_s`.

    Raises:
        ArgumentError, DTypeError: The arguments are wrong, or such a tensor cannot be sent.
        PeerGone, PeerFailed, WaitTimeout: The receiver died, gave up or did not come in time.
        OutOfMemory: The shared memory is full.

    Example::

        def work():
            rank = unisono.get_rank()
            unisono.send(torch.tensor([rank]), dst=(rank + 1) % 3)
            return int(unisono.recv(src=(rank - 1) % 3))

        unisono.run(work, ranks=3)  # [2, 0, 1]
    """
    limit_s = _limit(timeout_s)
    sent = sent_at_once(tensor, dst, group, tag, waits=True)
    if sent is True:
        return
    group = group_or_default(group)
    request = sent or send_request(tensor, dst, group, tag)
    progress_engine(group).complete(request, timeout_s=limit_s)


def recv(
    tensor: torch.Tensor | None = None,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    *,
    timeout_s: float | None = None,
) -> Any:
    """Receive a tensor from rank `src`, or from the first rank that sends one with this tag.

    Args:
        tensor: CPU tensor of any shape and layout, with the sender's dtype and number of elements. None: the call makes
            a tensor like the sender's.
        src: The sender. None: any rank.
        group: None: the default group.
        tag: The tag of the send.
        timeout_s: Seconds to wait for the sender. None: the group's `timeout_s`.

    Returns:
        The rank that sent the message; the new tensor if `tensor` is None (`irecv(None, ...).source_rank()` gives its
        sender).

    Raises:
        MessageMismatch: The message does not fit the tensor. The tensor has not changed and the message is dropped.
        ArgumentError, DTypeError: The arguments are wrong.
        PeerGone, PeerFailed, WaitTimeout: The sender died, gave up or did not send in time.

    Example::

        def work():
            if unisono.get_rank() > 0:
                unisono.send(torch.tensor([1.5, 2.5]), dst=0, tag=unisono.get_rank())
                return None
            tensor = torch.empty(2)
            return unisono.recv(tensor, tag=2), tensor.tolist(), unisono.recv(src=1, tag=1).shape

        unisono.run(work, ranks=3)[0]  # (2, [1.5, 2.5], torch.Size([2]))
    """
    limit_s = _limit(timeout_s)
    began = time.monotonic()
    taken = received_soon(tensor, src, group, tag, limit_s)
    if taken is True:
        return src
    group = group_or_default(group)
    request = taken or receive_request(tensor, src, group, tag)
    progress_engine(group).complete(request, timeout_s=limit_s, began=began)
    received = request.tensor
    return request.source if tensor is not None or received is None else received


def isend(
    tensor: torch.Tensor, dst: int, group: Group | None = None, tag: int = 0, *, timeout_s: float | None = None
) -> Transfer:
    """Start a `send` in the background. Do not change the tensor until `wait()` of the result has returned."""
    limit_s = _limit(timeout_s)
    if sent_at_once(tensor, dst, group, tag, waits=False):
        return FinishedTransfer(group_or_default(group).rank)
    group = group_or_default(group)
    return Transfer(group, send_request(tensor, dst, group, tag), limit_s)


def irecv(
    tensor: torch.Tensor | None = None,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    *,
    timeout_s: float | None = None,
) -> Transfer:
    """Start a `recv` in the background. The Transfer's `result()` is the tensor, its `source_rank()` the sender."""
    limit_s = _limit(timeout_s)
    group = group_or_default(group)
    return Transfer(group, receive_request(tensor, src, group, tag), limit_s)


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
    """Send a tensor to `dst` while receiving another from `src`. Arguments and errors are those of `send` and `recv`.

    Args:
        send_tensor, recv_tensor: CPU tensors that share no memory.

    Returns:
        The rank that sent the received message.
    """
    limit_s = _limit(timeout_s)
    group = group_or_default(group)
    receive, request = receive_request(recv_tensor, src, group, tag), send_request(send_tensor, dst, group, tag)
    check_apart([recv_tensor], send_tensor, None)
    progress_engine(group).complete(request, receive, timeout_s=limit_s, text="sendrecv({}, {})")
    return receive.source


class P2POp:
    """One operation for `batch_isend_irecv`.

    Args:
        op: `unisono.isend` or `unisono.irecv`.
        tensor: The tensor to send or to receive into.
        peer: The rank to send to or to receive from.
        group, tag: As in `send`.

    Raises:
        ArgumentError, DTypeError: The operation cannot take these arguments.
    """

    def __init__(
        self, op: Callable[..., Transfer], tensor: torch.Tensor, peer: int, group: Group | None = None, tag: int = 0
    ) -> None:
        group = group_or_default(group)
        if op not in (isend, irecv):
            raise ArgumentError(f"op: got {op!r}, expected unisono.isend or unisono.irecv")
        (send_request if op is isend else receive_request)(tensor, peer, group, tag)
        self.op, self.tensor, self.peer, self.group, self.tag = op, tensor, peer, group, tag


def batch_isend_irecv(p2p_op_list: Sequence[P2POp], *, timeout_s: float | None = None) -> list[Transfer]:
    """Start several sends and receives, and return a Transfer for each. Peers may list theirs in any order."""
    limit_s = _limit(timeout_s)
    for k, op in enumerate(p2p_op_list):
        if not isinstance(op, P2POp):
            raise DTypeError(f"p2p_op_list[{k}]: got {type(op).__name__}, expected a P2POp")
    return [op.op(op.tensor, op.peer, op.group, op.tag, timeout_s=limit_s) for op in p2p_op_list]


def send_object_list(
    object_list: list[Any],
    dst: int,
    group: Group | None = None,
    tag: int = 0,
    *,
    pickle: bool = False,
    timeout_s: float | None = None,
) -> None:
    """Send a list of Python objects to rank `dst`, which receives it with `recv_object_list`.

    Args:
        object_list: Plain values, CPU tensors and NumPy arrays, also in lists, tuples, dicts and sets.
        dst, group, tag, timeout_s: As in `send`, with the same errors. Tags of tensors are separate from tags of
            objects.
        pickle: Allow any object that can be pickled. The receiver must allow it, too.

    Raises:
        DTypeError: An object cannot be sent without `pickle`, or cannot be pickled.
    """
    limit_s = _limit(timeout_s)
    group = group_or_default(group)
    check_list("object_list", object_list)
    request = send_request(encode(object_list, pickle=pickle), dst, group, tag)
    request.tag = _FIRST - tag
    words = f"send_object_list({len(object_list)} objects, dst={dst}, tag={tag})"
    progress_engine(group).complete(request, timeout_s=limit_s, text=words)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    *,
    pickle: bool = False,
    timeout_s: float | None = None,
) -> int:
    """Receive the objects of a `send_object_list` from rank `src`, or from the first rank that sends some with this
    tag.

    Args:
        object_list: A list as long as the sender's; its items are replaced.
        src, group, tag, timeout_s: As in `recv`, with the same errors.
        pickle: Accept pickled objects. They can run any code: use it only with peers that you trust.

    Returns:
        The rank that sent the objects.

    Raises:
        ArgumentError: The list has another length, or the message cannot be decoded. The message is dropped.
    """
    limit_s = _limit(timeout_s)
    group = group_or_default(group)
    check_list("object_list", object_list)
    request = receive_request(None, src, group, tag)
    request.tag = _FIRST - tag
    words = f"recv_object_list({len(object_list)} objects, src={src}, tag={tag})"
    progress_engine(group).complete(request, timeout_s=limit_s, text=words)
    message = request.tensor if request.tensor is not None else torch.empty(0, dtype=torch.uint8, device="cpu")
    decode_into(object_list, request.source, message, "recv_object_list", pickle=pickle)
    return request.source
