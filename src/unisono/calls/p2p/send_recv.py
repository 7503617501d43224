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
            f"tensor: has {tensor.dim()} dimensions, but a message has at most {MOST_DIMENSIONS}. Pass .flatten()."
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
        raise DTypeError("tensor: quantized tensors cannot be sent; pass .int_repr()")


def _check_tag(tag: Any) -> int:
    number = integer("tag", tag)
    if not 0 <= number < 1 << 63:
        raise ArgumentError(f"tag={number}: a tag is 0 or more, and less than 2**63")
    return number


def _limit(timeout_s: Any) -> float | None:
    return None if timeout_s is None else seconds(timeout_s)


def send(
    tensor: torch.Tensor, dst: int, group: Group | None = None, tag: int = 0, *, timeout_s: float | None = None
) -> None:
    """Send a tensor to rank `dst`, which may be this one. Returns when the tensor may change again.

    tensor: of the CPU, any shape, dtype and layout.
    dst: a rank of the group.
    tag: 0 to 2**63 - 1; a receive with the same tag gets the message.
    group: None: the default group.
    timeout_s: how long to wait for the receiver; None: as long as the group does.

    A short message waits in shared memory until it is received; a long one needs the receiver. Ranks that send to each
    other at once do not hang. Raises ArgumentError and DTypeError for arguments that cannot be sent, PeerGone,
    PeerFailed, WaitTimeout, OutOfMemory.

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
    """Receive a tensor from rank `src`, or from the rank that was first to send one with this tag; returns the source.

    tensor: of the CPU, written; of any shape and layout, with the sender's dtype and number of elements. None: returns
    a new tensor like the sender's; `irecv(None, ...).source_rank()` tells its source.
    src: a rank of the group; None: any.
    tag: the tag of the send.
    group: None: the default group.
    timeout_s: how long to wait for the sender; None: as long as the group does.

    Raises MessageMismatch if the message does not fit: it is dropped as a whole first, so that its sender goes on, and
    the tensor is not changed; and ArgumentError, DTypeError, PeerGone, PeerFailed, WaitTimeout.

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
    """Start a `send`; the tensor must not change until the Transfer's `wait` has returned."""
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
    """Start a `recv`. The Transfer's `result()` is the tensor, its `source_rank()` the sender."""
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
    """Send a tensor to `dst` while receiving another from `src`; returns the source. The two share no memory."""
    limit_s = _limit(timeout_s)
    group = group_or_default(group)
    receive, request = receive_request(recv_tensor, src, group, tag), send_request(send_tensor, dst, group, tag)
    check_apart([recv_tensor], send_tensor, None)
    progress_engine(group).complete(request, receive, timeout_s=limit_s, text="sendrecv({}, {})")
    return receive.source


class P2POp:
    """One operation of `batch_isend_irecv`: op is `isend` to the peer, or `irecv` from it.

    Raises ArgumentError or DTypeError for arguments that the operation would refuse.
    """

    def __init__(
        self, op: Callable[..., Transfer], tensor: torch.Tensor, peer: int, group: Group | None = None, tag: int = 0
    ) -> None:
        group = group_or_default(group)
        if op not in (isend, irecv):
            raise ArgumentError(f"op: expected unisono's isend or irecv, got {op!r}")
        (send_request if op is isend else receive_request)(tensor, peer, group, tag)
        self.op, self.tensor, self.peer, self.group, self.tag = op, tensor, peer, group, tag


def batch_isend_irecv(p2p_op_list: Sequence[P2POp], *, timeout_s: float | None = None) -> list[Transfer]:
    """Start all operations, in this order, and return a Transfer for each. The peers may use any order."""
    limit_s = _limit(timeout_s)
    for k, op in enumerate(p2p_op_list):
        if not isinstance(op, P2POp):
            raise DTypeError(f"p2p_op_list[{k}]: expected a P2POp, got {type(op).__name__}")
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
    """Send the objects of a list to rank `dst`. Only `recv_object_list` receives them; tensors have tags of their own.

    pickle: send any object that can be pickled; the receiver must pass it, too. Without it, only plain values, CPU
    tensors and NumPy arrays can be sent: see `calls.codec.encode`. Raises DTypeError for another object, and as `send`
    does.
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
    """Receive objects from rank `src`, or from the rank that was first to send some with this tag; returns the source.

    object_list: as long as the sender's; its items are replaced. pickle: accept pickled objects, which can run any
    code. Raises ArgumentError for a list of another length and for bytes that cannot be decoded, which drops the
    message; otherwise as `recv` does.
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
