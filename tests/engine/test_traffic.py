"""What groups leave behind of their messages to other hosts: who comes later gets them, and nothing stays for ever."""

from __future__ import annotations

import gc

import torch

from tests.engine.test_far_mailbox import run
from tests.support.far_mailboxes import FarMailboxes, far_mailboxes
from tests.support.mailboxes import receive, send, values


def test_what_a_group_has_sent_outlives_it() -> None:
    with far_mailboxes("1+1") as made:
        a, b = made.boxes
        sent = [send(a, values(count, count), 1) for count in (3, 5000)]
        assert all(request.done for request in sent)
        a.leave()
        b.listen_to_all()
        run(made)
        for count in (3, 5000):
            assert torch.equal(receive(b, None, 0).tensor, values(count, count))
        stream = b.stream_from(0)
        assert stream is not None
        assert stream.ended


def left(made: FarMailboxes) -> list[int]:
    """How many streams of groups that have ended each rank keeps."""
    return [len(traffic._left) for traffic in made.traffic]


def test_streams_of_groups_that_have_ended_on_both_sides_are_forgotten() -> None:
    with far_mailboxes("1+1") as made:
        a, b = made.boxes
        for box in (a, b):
            box.listen_to_all()
        send(a, values(5), 1)
        send(b, values(5), 0)
        run(made)
        made.boxes.clear()
        a.leave()
        assert left(made) == [2, 0], "the other side may still send"
        del b, box  # one that is dropped has ended, too
        gc.collect()
        for traffic in made.traffic * 2:
            traffic._sweep()
            traffic.carrier.progress()
        for traffic in made.traffic:
            traffic._sweep()
        assert left(made) == [0, 0]
        assert made.wires.unmet == 0


def test_the_end_waits_until_the_last_message_has_been_taken() -> None:
    with far_mailboxes("1+1") as made:
        a, b = made.boxes
        send(a, values(5), 1)
        rounds: list[int] = []

        def gone(rank: int) -> bool:
            assert rank == 1
            rounds.append(rank)
            if len(rounds) == 3:
                b.listen_to_all()
            b.progress()
            return False

        a.leave()
        made.traffic[0].close(60.0, gone)
        assert len(rounds) >= 3
        assert torch.equal(receive(b, None, 0).tensor, values(5))
        assert left(made)[0] == 1, "what it could have received"


def test_the_end_does_not_wait_for_who_has_gone_or_for_ever() -> None:
    for limit_s, is_gone in ((60.0, True), (0.0, False)):
        with far_mailboxes("1+1") as made:
            send(made.boxes[0], values(5), 1)
            made.boxes[0].leave()
            made.traffic[0].close(limit_s, lambda _, is_gone=is_gone: is_gone)
            assert left(made)[0] == 2
