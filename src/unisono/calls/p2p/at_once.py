"""The short way of messages of usual tensors: a few checks, then the mailbox moves the message, or does nothing.

If it does nothing, the call goes the long way: it checks, posts, waits and raises.
"""

from __future__ import annotations

from typing import Any

from ...engine.mailbox import Mailbox, Receive
from ...engine.process.nested import check_nested, holds
from ...engine.tensors import DTYPE_CODES, mark_written, needed_by_autograd, use_count
from ...ranks.group import current
from ...ranks.group.abort import give_up
from ...ranks.group.group import Group

_CODES = {dtype: code for dtype, code in DTYPE_CODES.items() if not (dtype.is_complex or "q" in str(dtype))}
"""Without the dtypes of tensors that may be conjugate, or have a scale."""
_TAGS = 1 << 63
_SOON_S = 0.001
"""How long a receive waits: after that, the long way costs little more."""


@holds("mailbox")
def sent_at_once(tensor: Any, dst: Any, group: Any, tag: Any) -> bool:
    """Send a tensor, if all of it fits into the ring to its receiver, and no other message waits for room."""
    if group is None:
        group = current.default
    try:
        mailbox, nbytes = group.kept[Mailbox], tensor.nbytes
        if nbytes > mailbox.capacity:
            return False
        address, dtype, shape = tensor.data_ptr(), tensor.dtype, tensor.shape
        if not (address and tensor.is_contiguous() and tensor.is_cpu and dtype in _CODES) or tensor.is_neg():
            return False
        if dst.__class__ is not int or tag.__class__ is not int or not 0 <= tag < _TAGS or tensor.is_nested:
            return False
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return False
    if mailbox.lock.locked():
        check_nested(mailbox, f"the messages of {group}")
    with mailbox.lock:
        try:
            sent: bool = mailbox.send_at_once(address, dtype, shape, nbytes, dst, tag)
        except BaseException as error:
            give_up(group, f"stopped moving messages ({type(error).__name__})", "a point-to-point call")
            raise
    return sent


def received_soon(tensor: Any, src: Any, group: Any, tag: Any, entered_ns: int, timeout_s: float | None) -> bool | None:
    """Receive a tensor, if the next message from its source is for it. Waits until something changes, but not long.

    Returns False if it has not come yet, None if a call with these arguments must go the long way.

    entered_ns: when the call began, by the monotonic clock. timeout_s: the most to wait; None: as long as the group.
    """
    if group is None:
        group = current.default
    try:
        mailbox, nbytes = group.kept[Mailbox], tensor.nbytes
        if nbytes > mailbox.most_at_once:
            return None  # a long message begins to come before all of it is there
        address, dtype = tensor.data_ptr(), _CODES[tensor.dtype]
        if not (address and tensor.is_contiguous() and tensor.is_cpu) or tensor.is_neg() or tensor.is_nested:
            return None
        if src.__class__ is not int or tag.__class__ is not int or not 0 <= tag < _TAGS:
            return None
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return None
    if not _taken(group, mailbox, (address, dtype, nbytes, src, tag, entered_ns), timeout_s, None):
        return False
    if tensor.requires_grad or use_count(tensor) > 1:
        mark_written(needed_by_autograd((tensor,)))
    return True


def completed_soon(receive: Receive, group: Group, mailbox: Mailbox, timeout_s: float | None) -> bool:
    """As `received_soon`, for a receive that is to be posted later, if it has not been posted meanwhile."""
    tensor = receive.tensor
    if mailbox.later is not receive or tensor is None or Mailbox not in group.kept:
        return False
    place = tensor.data_ptr(), _CODES[tensor.dtype], tensor.nbytes
    if not _taken(group, mailbox, (*place, receive.peer, receive.tag, receive.entered_ns), timeout_s, receive):
        return False
    mark_written(receive.marked)
    return True


@holds("mailbox")
def _taken(
    group: Group, mailbox: Mailbox, what: tuple[int, ...], timeout_s: float | None, later: Receive | None
) -> bool:
    poller, waited = mailbox.poller, False
    while True:
        wakeups = poller.wakeups
        if mailbox.lock.locked():
            check_nested(mailbox, f"the messages of {group}")
        with mailbox.lock:
            try:
                if mailbox.later is not later:
                    if later is not None:
                        return False
                    mailbox.settle()
                if mailbox.receive_at_once(*what):
                    if later is not None:
                        mailbox.later, later.done = None, True
                    return True
            except BaseException as error:
                give_up(group, f"stopped moving messages ({type(error).__name__})", "a point-to-point call")
                raise
        limit_s = min(_SOON_S, group.timeout_s if timeout_s is None else timeout_s)
        if waited or limit_s <= 0 or not poller.wait(wakeups, 0.0, limit_s):
            return False
        waited = True
