"""Requests of mailboxes that are withdrawn or fail: no message is lost, comes twice, or stays for ever."""

import gc
from collections.abc import Callable

import pytest
import torch

from tests.engine.test_far_mailbox import run as run_all
from tests.support.far_mailboxes import FarMailboxes, far_mailboxes
from tests.support.mailboxes import Boxes, receive, run, send, values
from unisono.base.errors import ArgumentError, MessageMismatch


@pytest.mark.parametrize("boxes", ["near"], indirect=True)
def test_a_withdrawn_receive_loses_nothing(boxes: Callable[[int], Boxes]) -> None:
    a, b = boxes(2)
    target = torch.empty(5000, dtype=torch.int64)
    waiting = receive(b, target, 0)
    b.withdraw(waiting)
    send(a, values(5000), 1)
    begun = receive(b, target, 0)
    b.progress()
    a.progress()
    b.progress()
    assert begun.message is not None, "it is in the midst of coming"
    b.withdraw(begun)
    target.zero_()
    send(a, values(2, 2), 1)
    run(a, b)
    assert not waiting.done
    assert not begun.done
    assert (target == 0).all()
    assert torch.equal(receive(b, None, 0).tensor, values(5000))
    assert torch.equal(receive(b, None, 0).tensor, values(2, 2))


def test_withdrawn_refusal_drops_its_message(boxes: Callable[[int], Boxes]) -> None:
    """The receive ends with its error; what it leaves behind lets the sender end, too."""
    a, b = boxes(2)
    refused = receive(b, torch.empty(5000), 0)
    sent = send(a, values(5000), 1)
    send(a, values(2, 2), 1)
    while refused.message is None:
        assert b.progress() or a.progress()
    rest = b.withdraw(refused)
    assert isinstance(refused.error, MessageMismatch)
    assert refused.done
    run(a, b)
    assert rest.done
    assert sent.done
    assert torch.equal(receive(b, None, 0).tensor, values(2, 2))


def test_withdrawn_sends_release_their_tensor(boxes: Callable[[int], Boxes]) -> None:
    a, b = boxes(2)
    tensors = [values(5000, k) for k in range(3)]
    sent = [send(a, tensor, 1) for tensor in tensors]
    assert a.withdraw(sent[1]) is None
    rest = a.withdraw(sent[0])
    assert rest is not None
    tensors[0].zero_()
    run(a, b)
    assert [request.done for request in sent] == [False, False, True]
    assert rest.done
    assert torch.equal(receive(b, None, 0).tensor, values(5000, 0))
    assert torch.equal(receive(b, None, 0).tensor, values(5000, 2))


def test_failed_requests_hear_why_once(boxes: Callable[[int], Boxes]) -> None:
    a, b = boxes(2)
    error, later = ArgumentError("one"), ArgumentError("two")
    requests = [receive(a, None, 1), send(a, values(5000), 1), send(a, values(5000), 1)]
    for request in requests:
        a.withdraw(request, error)
        a.withdraw(request, later)
        assert request.done
        assert request.error is error
    assert a.finished == requests
    run(a, b)
    assert torch.equal(receive(b, None, 0).tensor, values(5000)), "what had begun"
    assert not receive(b, None, 0).done


def left(made: FarMailboxes) -> list[int]:
    """How many streams of groups that have ended each rank keeps."""
    return [sum(stream.left for stream in traffic._streams) for traffic in made.traffic]


def test_ended_groups_leave_no_streams() -> None:
    with far_mailboxes("1+1") as made:
        a, b = made.boxes
        for box in (a, b):
            box.listen_to_all()
        send(a, values(5), 1)
        send(b, values(5), 0)
        run_all(made)
        made.boxes.clear()
        a.leave()
        assert left(made) == [2, 0], "the other side may still send"
        del b, box  # one that is dropped has ended, too
        gc.collect()
        for traffic in made.traffic * 2:
            traffic.sweep()
            traffic.carrier.progress()
        for traffic in made.traffic:
            traffic.sweep()
        assert left(made) == [0, 0]
        assert made.wires.unmet == 0


def test_end_does_not_wait_for_the_dead() -> None:
    for limit_s, is_gone in ((60.0, True), (0.0, False)):
        with far_mailboxes("1+1") as made:
            send(made.boxes[0], values(5), 1)
            made.boxes[0].leave()
            made.traffic[0].close(limit_s, lambda _, is_gone=is_gone: is_gone)
            assert left(made)[0] == 2
