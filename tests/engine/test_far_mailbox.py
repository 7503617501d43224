"""Mailboxes on several hosts: what is special about messages that a carrier moves, by hand and by chance."""

import random
from collections import defaultdict

import pytest
import torch

from tests.support.far_mailboxes import FarMailboxes, far_mailboxes
from tests.support.mailboxes import receive, send, values
from unisono.base.errors import InternalError
from unisono.engine.kernels.ring_buffer import HeadWord, head_bytes
from unisono.engine.mailbox import ANY_SOURCE, Receive, Send, far_channel
from unisono.engine.mailbox.far_channel import COPIED_BYTES, HEAD_BYTES, WINDOW_BYTES


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is long is shorter, so that all of it happens soon."""
    for name, nbytes in (("WINDOW", 40_000), ("COPIED", 10_000)):
        monkeypatch.setattr(far_channel, f"{name}_BYTES", nbytes)


def run(made: FarMailboxes) -> None:
    """Let all mailboxes move all that there is."""
    for traffic in made.traffic:
        vars(traffic.carrier).pop("progress", None)
    while sum(box.progress() for box in made.boxes) or made.wires.move():
        pass


SIZES = (0, 1, 8, 4500, HEAD_BYTES - head_bytes(1) - 1, HEAD_BYTES - head_bytes(1), HEAD_BYTES, 9_999, 10_001, 50_000)


def test_payloads_of_all_lengths(small: None) -> None:
    """Inside a head, in one piece and in several."""
    draw = random.Random(3)
    with far_mailboxes("1+1", prompt=False, seed=3) as made:
        a, b = made.boxes
        for k in range(150):
            nbytes, times, early = draw.choice(SIZES), draw.randrange(1, 4), draw.random() < 0.5
            shape = [1] * draw.randrange(12) + [nbytes]
            target = [torch.zeros(nbytes, dtype=torch.uint8) if early else None for _ in range(times)]
            posted = [receive(b, into, 0, k) for into in target if early]
            sent = [send(a, values(nbytes, 10 * k + n, torch.uint8).view(shape), 1, k) for n in range(times)]
            run(made)
            posted = posted or [receive(b, None, 0, k) for _ in range(times)]
            run(made)
            assert all(request.done for request in sent)
            for n, request in enumerate(posted):
                assert request.done
                assert request.tensor is not None
                assert early or request.tensor.shape == tuple(shape)
                assert torch.equal(request.tensor.view(-1), values(nbytes, 10 * k + n, torch.uint8))


def test_short_sends_in_the_window_end_at_once() -> None:
    with far_mailboxes("1+1") as made:
        a, b = made.boxes
        sent = [send(a, values(8, k), 1) for k in range(4000)]
        done = [request.done for request in sent]
        assert done == sorted(done, reverse=True)
        assert sum(done) == WINDOW_BYTES // HEAD_BYTES
        assert not a.progress(), "nobody listens"
        b.listen_to_all()
        run(made)
        assert all(request.done for request in sent)
        for k in range(4000):
            assert torch.equal(receive(b, None, 0).tensor, values(8, k))


@pytest.mark.parametrize("nbytes", [100, COPIED_BYTES + 8, WINDOW_BYTES])
def test_sent_tensors_may_change(nbytes: int) -> None:
    with far_mailboxes("1+1", prompt=False) as made:
        a, b = made.boxes
        tensor = values(nbytes, 4, torch.uint8)
        sent = send(a, tensor, 1)
        assert sent.done == (nbytes < WINDOW_BYTES)
        if not sent.done:
            b.listen_to_all()
            run(made)
        tensor.zero_()
        got = receive(b, None, 0)
        run(made)
        assert sent.done
        assert torch.equal(got.tensor, values(nbytes, 4, torch.uint8))


def test_unheard_peers_send_nothing() -> None:
    with far_mailboxes("1+1+1") as made:
        a, b, c = made.boxes
        for box in (a, c):
            send(box, values(9, 1), 1)
        run(made)
        assert b.unexpected_tags(0) == b.unexpected_tags(2) == []
        assert receive(b, None, 2, 5).done is False
        run(made)
        assert b.unexpected_tags(2) == [0]
        assert b.unexpected_tags(0) == []
        assert receive(b, None, ANY_SOURCE, 5).done is False
        run(made)
        assert b.unexpected_tags(0) == [0]


def all_together(made: FarMailboxes, draw: random.Random) -> None:
    """From now on, whoever calls the carrier gives the others time, too, as they have where each is a process."""
    busy: list[None] = []

    def progress() -> None:
        for _ in range(draw.randrange(4)):
            made.wires.move()
        if not busy and draw.random() < 0.3:
            busy.append(None)
            draw.choice(made.boxes).progress()
            busy.clear()

    for traffic in made.traffic:
        traffic.carrier.progress = progress  # type: ignore[method-assign]


@pytest.mark.parametrize("seed", range(12))
def test_a_storm(small: None, seed: int) -> None:
    """Sends, receives and cancellations of ranks on two or three hosts, at random.

    Every message that has not been withdrawn is received once, as it was sent; of those of one rank and one tag, a
    receive that was posted before another one takes the earlier one.
    """
    draw = random.Random(seed)
    hosts = draw.choice(["1+1", "2+1", "2+2:round_robin", "1+2+1:round_robin"])
    with far_mailboxes(hosts, prompt=False, seed=seed) as made:
        ranks, boxes = len(made.boxes), made.boxes
        all_together(made, draw)
        expected: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        posted: dict[tuple[int, int], list[Receive]] = defaultdict(list)
        pending: list[tuple[int, int, Send, torch.Tensor]] = []
        for box in boxes:
            box.listen_to_all()
        for k in range(250):
            kind, me, peer, tag = draw.random(), draw.randrange(ranks), draw.randrange(ranks), draw.randrange(2)
            if kind < 0.35:
                tensor = values(draw.choice([0, 2, 2, 560, 700, 700, 5000]), k)
                expected[me, peer, tag].append(k)
                pending.append((k, me, send(boxes[me], tensor, peer, tag), tensor))
            elif kind < 0.55:
                source = draw.choice([peer, ANY_SOURCE])
                posted[me, tag].append(receive(boxes[me], None, source, tag))
            elif kind < 0.6 and pending:
                seed_of, me, request, tensor = pending.pop(draw.randrange(len(pending)))
                if not request.done and boxes[me].withdraw(request) is None and not request.done:
                    next(seeds for seeds in expected.values() if seed_of in seeds).remove(seed_of)
                tensor.fill_(-1)
            elif kind < 0.65 and posted[me, tag]:
                request = draw.choice(posted[me, tag])
                boxes[me].withdraw(request)
                if not request.done:
                    posted[me, tag].remove(request)
            else:
                boxes[me].progress()
        for (source, me, tag), seeds in expected.items():
            posted[me, tag] += [receive(boxes[me], None, source, tag) for _ in seeds]
        run(made)
        got: dict[tuple[int, int, int], list[Receive]] = defaultdict(list)
        for (me, tag), requests in posted.items():
            for request in requests:
                if request.done:
                    tensor = request.tensor
                    assert tensor is not None
                    got[request.source, me, tag].append(request)
                    sent = expected[request.source, me, tag]
                    k = sent[len(got[request.source, me, tag]) - 1]
                    assert torch.equal(tensor, values(len(tensor), k))
        assert {key: len(taken) for key, taken in got.items()} == {key: len(s) for key, s in expected.items() if s}


def test_a_broken_connection_keeps_what_has_come(small: None) -> None:
    with far_mailboxes("1+1", prompt=False) as made:
        a, b = made.boxes
        b.listen_to_all()
        for k in range(3):
            send(a, values(3, k), 1)
        while made.wires.move():
            pass
        made.wires.aborted = True
        got = [receive(b, None, 0) for _ in range(3)]
        late = send(a, values(9000), 1)
        run(made)
        assert got[0].done
        assert torch.equal(got[0].tensor, values(3, 0))
        assert not late.done
        for box, rank in ((a, 1), (b, 0)):
            reason, _ = box.cut(rank)
            assert reason == "aborted"
        assert not a.progress()
        assert not b.progress(), "a broken stream is at rest"


def test_tags_differ_in_the_upper_half() -> None:
    with far_mailboxes("1+1+1") as made:
        peers = made.boxes[0]._far
        pairs = {(a, b): peers._tags(a, b) for a in range(3) for b in range(3) if a != b}
        tags = [tag for pair in pairs.values() for tag in pair]
        assert len(set(tags)) == len(tags)
        assert all(1 << 41 <= tag < 1 << 42 for tag in tags)


HEADS = {
    "a tensor of dtype 9999": {HeadWord.KIND: 9999 << 8},
    "12 bytes for float32": {HeadWord.NBYTES: 12},
    r"8 bytes for float32\[1099511627776\]": {HeadWord.SHAPE: 1 << 40},
    "a tensor of": {HeadWord.SHAPE: -1},
}


@pytest.mark.parametrize("words", HEADS)
def test_a_head_that_cannot_be_is_refused(words: str) -> None:
    with far_mailboxes("1+1", prompt=False) as made:
        a, b = made.boxes
        send(a, torch.zeros(2), 1)
        head = a._outgoing[1]._under_way[0]
        for word, value in HEADS[words].items():
            head.header[word] = value
        b.listen_to_all()
        with pytest.raises(InternalError, match=f"rank 0 has sent .*{words}"):
            run(made)


def test_an_answer_that_cannot_be_is_refused() -> None:
    with far_mailboxes("1+1", prompt=False) as made:
        a, _ = made.boxes
        send(a, torch.zeros(2), 1)
        a._outgoing[1]._answer.number = 2
        a._outgoing[1]._answer.handle = None
        with pytest.raises(InternalError, match="rank 1 of the world has acknowledged 2 pieces"):
            a.progress()
