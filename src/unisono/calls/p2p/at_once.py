"""The short way of messages of usual tensors: a few checks, then the mailbox moves the message, or does nothing.

If it does nothing, the call goes the long way: it checks, posts, waits and raises.
"""

from typing import Any

from ...base.python import is_from_below
from ...engine.mailbox import Mailbox, Receive, Send
from ...engine.process.nested import check_nested, holds
from ...engine.tensors import DTYPE_CODES, mark_written, needed_by_autograd, use_count
from ...ranks.group import current
from ...ranks.group.abort import give_up
from ...ranks.group.group import Group

_CODES = {dtype: code for dtype, code in DTYPE_CODES.items() if not (dtype.is_complex or "q" in str(dtype))}
"""Without the dtypes of tensors that may be conjugate, or have a scale."""
_TAGS = 1 << 63
_SOON_S = 0.001  # how long a receive waits: after that, the long way costs little more

_BEGUN = 2

_Message = tuple[int, int, int]  # the address of a tensor, the code of its dtype, its bytes


def usual(tensor: Any, peer: Any, group: Any, tag: Any) -> tuple[Group, Mailbox, _Message] | None:
    """The group, its mailbox, and the message, of a call with usual arguments. None: it must be checked closely."""
    if group is None:
        group = current.default
    try:
        mailbox, message = group.mailbox, (tensor.data_ptr(), _CODES[tensor.dtype], tensor.nbytes)
        if not (message[0] and tensor.is_contiguous() and tensor.is_cpu) or tensor.is_neg() or tensor.is_nested:
            return None
        if mailbox is None or peer.__class__ is not int or tag.__class__ is not int or not 0 <= tag < _TAGS:
            return None
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        if is_from_below(error):
            raise
        return None
    return group, mailbox, message


def comes_whole(mailbox: Mailbox, message: _Message) -> bool:
    """Does all of a message come at once? Otherwise an `irecv` is posted now, to take its first part."""
    return message[2] <= mailbox.most_at_once


@holds("mailbox")
def sent_at_once(tensor: Any, dst: Any, group: Any, tag: Any, *, waits: bool) -> bool | Send:
    """Send a tensor, if no other message waits for room in the ring to its receiver.

    waits: the caller waits for the end of a message that is longer than the ring. Returns its request if there was no
    room for its rest in time. Otherwise, such a message is not sent.
    """
    found = usual(tensor, dst, group, tag)
    if found is None:
        return False
    group, mailbox, message = found
    if message[2] > mailbox.capacity and not waits:
        return False
    shape = tensor.shape
    if mailbox.lock.locked():
        check_nested(mailbox, f"the messages of {group}")
    with mailbox.lock:
        try:
            sent = mailbox.send_at_once(*message, shape, dst, tag)
            if sent == _BEGUN:
                begun = Send(tensor, dst, tag)
                mailbox.adopt(begun)
                return begun
            return bool(sent)
        except BaseException as error:
            stop(group, error)
            raise


def received_soon(tensor: Any, src: Any, group: Any, tag: Any, timeout_s: float | None) -> bool | Receive:
    """Receive a tensor, if the next message from its source is for it. Waits until something changes, but not long.

    timeout_s: the most to wait; None: as long as the group.
    Returns a request if a part of the message has come, and its rest comes late.
    """
    found = usual(tensor, src, group, tag)
    taken = found is not None and _taken(*found, (src, tag), timeout_s, tensor)
    if taken is not True:
        return taken
    if tensor.requires_grad or use_count(tensor) > 1:
        mark_written(needed_by_autograd((tensor,)))
    return True


@holds("mailbox")
def postpone(receive: Receive, group: Group, mailbox: Mailbox) -> None:
    """Let a receive of a usual tensor be posted when the mailbox is used next, see `Mailbox.later`."""
    if mailbox.lock.locked():
        check_nested(mailbox, f"the messages of {group}")
    with mailbox.lock:
        mailbox.settle()
        mailbox.later = receive


def completed_soon(receive: Receive, group: Group, mailbox: Mailbox, timeout_s: float | None) -> bool:
    """As `received_soon`, for a receive that `postpone` has taken, unless it has been posted meanwhile."""
    if mailbox.later is not receive:
        return False
    found = usual(receive.tensor, receive.peer, group, receive.tag)
    what = receive.peer, receive.tag
    if found is None or _taken(*found, what, timeout_s, receive.tensor, receive) is not True:
        return False
    mark_written(receive.marked)
    return True


@holds("mailbox")
def _taken(
    group: Group,
    mailbox: Mailbox,
    message: _Message,
    what: tuple[int, int],
    timeout_s: float | None,
    tensor: Any,
    later: Receive | None = None,
) -> bool | Receive:
    """Take a message into a tensor, now or soon. what: source and tag. Returns as above."""
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
                if taken := mailbox.receive_at_once(*message, *what):
                    mailbox.later = None
                    if taken == _BEGUN:
                        begun = later or Receive(tensor, *what)
                        mailbox.adopt(begun)
                        return begun
                    if later is not None:
                        later.done = True
                    return True
            except BaseException as error:
                stop(group, error)
                raise
        limit_s = min(_SOON_S, group.timeout_s if timeout_s is None else timeout_s)
        if waited or limit_s <= 0 or not poller.wait(wakeups, 0.0, limit_s):
            return False
        waited = True


def stop(group: Group, error: BaseException) -> None:
    """Give up a group after an error within a step, such as Ctrl-C: the mailbox and its rings may differ now."""
    give_up(group, f"stopped moving messages ({type(error).__name__})", "a point-to-point call")
