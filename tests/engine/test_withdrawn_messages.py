"""Requests of mailboxes that are withdrawn, or fail: no message is lost, and none comes twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.mailboxes import Boxes, receive, run, send, values
from unisono.base.errors import ArgumentError
from unisono.engine.mailbox import ANY_SOURCE


@pytest.mark.parametrize("boxes", ["near"], indirect=True)
def test_a_withdrawn_receive_loses_nothing(boxes: Callable[[int], Boxes]) -> None:
    a, b = boxes(2)
    target = torch.empty(5000, dtype=torch.int64)
    waiting = receive(b, target, 0)
    b.cancel(waiting)
    send(a, values(5000), 1)
    begun = receive(b, target, 0)
    b.progress()
    a.progress()
    b.progress()
    assert begun.message is not None, "it is in the midst of coming"
    b.cancel(begun)
    target.zero_()
    send(a, values(2, 2), 1)
    run(a, b)
    assert not waiting.done
    assert not begun.done
    assert (target == 0).all()
    assert torch.equal(receive(b, None, 0).tensor, values(5000))
    assert torch.equal(receive(b, None, 0).tensor, values(2, 2))


@pytest.mark.parametrize("boxes", ["near"], indirect=True)
def test_the_message_of_a_withdrawn_receive_goes_to_the_one_that_waits_behind_it(boxes: Callable[[int], Boxes]) -> None:
    a, b = boxes(2)
    first, second = receive(b, torch.empty(5000, dtype=torch.int64), 0), receive(b, None, ANY_SOURCE)
    send(a, values(5000), 1)
    while first.message is None:
        assert b.progress() or a.progress()
    b.cancel(first)
    send(a, values(2, 2), 1)
    run(a, b)
    taken = first if first.done else second
    assert torch.equal(taken.tensor, values(5000))
    assert torch.equal((second if first.done else receive(b, None, 0)).tensor, values(2, 2))


def test_a_receive_withdrawn_from_what_had_come_in_part_leaves_it_to_the_next(boxes: Callable[[int], Boxes]) -> None:
    a, b = boxes(2)
    send(a, values(5000), 1)
    b.progress()
    late = receive(b, torch.empty(5000, dtype=torch.int64), 0)
    b.cancel(late)
    run(a, b)
    assert not late.done
    assert torch.equal(receive(b, None, 0).tensor, values(5000))


def test_a_withdrawn_send_is_not_sent_or_goes_on_without_its_tensor(boxes: Callable[[int], Boxes]) -> None:
    a, b = boxes(2)
    tensors = [values(5000, k) for k in range(3)]
    sent = [send(a, tensor, 1) for tensor in tensors]
    assert a.cancel(sent[1]) is None
    rest = a.cancel(sent[0])
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
        a.fail(request, error)
        a.fail(request, later)
        assert request.done
        assert request.error is error
    assert a.finished == requests
    run(a, b)
    assert torch.equal(receive(b, None, 0).tensor, values(5000)), "what had begun"
    assert not receive(b, None, 0).done
