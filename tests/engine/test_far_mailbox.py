"""Mailboxes on several hosts: what is special about messages that a carrier moves, by hand and by chance."""

import gc
import random
from collections import defaultdict

import pytest
import torch

from tests.support.mailboxes import RING, Mailboxes, Make, mailboxes, place, receive, run, send, values
from unisono.base.errors import InternalError
from unisono.engine.kernels.ring_buffer import HeadWord, head_bytes
from unisono.engine.mailbox import ANY_SOURCE, Receive, Send
from unisono.engine.mailbox.far_channel import HEAD_BYTES, FarChannel

pytestmark = pytest.mark.usefixtures("small")


@pytest.mark.parametrize("boxes", ["far"], indirect=True)
@pytest.mark.parametrize("nbytes", [100, 2 * RING + 8, 6 * RING])
def test_sent_tensors_may_change(boxes: Make, nbytes: int) -> None:
    """At once, where they fit into the window."""
    a, b = boxes(2)
    tensor = values(nbytes, 4, torch.uint8)
    sent = send(a, tensor, 1)
    assert sent.done == (nbytes < 6 * RING)
    if not sent.done:
        run(a, b)
    tensor.zero_()
    got = receive(b, None, 0)
    run(a, b)
    assert sent.done
    assert torch.equal(got.tensor, values(nbytes, 4, torch.uint8))


def test_unheard_peers_send_nothing() -> None:
    with mailboxes("1+1+1") as made:
        a, b, c = made.boxes
        for box in (a, c):
            send(box, values(9, 1), 1)
        for source, seen in ((None, ([], [])), (2, ([], [0])), (ANY_SOURCE, ([0], [0]))):
            assert source is None or not receive(b, None, source, 5).done
            made.run()
            assert (b.unexpected_tags(0), b.unexpected_tags(2)) == seen


def all_together(made: Mailboxes, draw: random.Random) -> None:
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


HEAD = (HEAD_BYTES - head_bytes(1)) // 8
"""The most numbers that fit into a head."""


@pytest.mark.parametrize("hosts", ["1x3", "1+1+1", "2+1", "2+2:round_robin", "1+2+1:round_robin"])
@pytest.mark.parametrize("seed", range(5))
def test_a_storm(hosts: str, seed: int) -> None:
    """Sends, receives and cancellations of ranks on one host or several, at random, some of them at once.

    Every message that has not been withdrawn is received once, as it was sent; of those of one rank and one tag, a
    receive that was posted before another one takes the earlier one.
    """
    draw = random.Random(seed)
    with mailboxes(hosts, seed=seed) as made:
        ranks, boxes = len(made.boxes), made.boxes
        all_together(made, draw)
        expected: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        posted: dict[tuple[int, int], list[Receive]] = defaultdict(list)
        pending: list[tuple[int, int, Send | bool, torch.Tensor]] = []
        for box in boxes:
            box.listen_to_all()
        for k in range(300):
            kind, me, peer, tag = draw.random(), draw.randrange(ranks), draw.randrange(ranks), draw.randrange(2)
            count, at_once, box = draw.choice([0, 2, 2, HEAD, HEAD + 1, 700, 5000]), draw.random() < 0.5, boxes[me]
            if kind < 0.35:
                tensor = values(count, k)
                expected[me, peer, tag].append(k)
                sent = at_once and box.send_at_once(tensor, place(tensor), peer, tag)
                pending.append((k, me, sent or send(box, tensor, peer, tag), tensor))
            elif kind < 0.55:
                source, dtype = draw.choice([peer, ANY_SOURCE]), draw.choice([torch.int64, torch.int64, torch.float64])
                tensor = torch.full((count,), -1, dtype=dtype)  # float64 fits no message
                got_it = at_once and source == peer and box.receive_at_once(tensor, place(tensor), peer, tag)
                if got_it is True:
                    got_it = Receive(tensor, peer, tag)
                    got_it.done = True
                assert got_it or (tensor == -1).all()
                posted[me, tag].append(got_it or receive(box, None, source, tag))
            elif kind < 0.6 and pending:
                seed_of, me, request, tensor = pending.pop(draw.randrange(len(pending)))
                if isinstance(request, Send) and not request.done and boxes[me].withdraw(request) is None:
                    next(seeds for seeds in expected.values() if seed_of in seeds).remove(seed_of)
                tensor.fill_(-1)
            elif kind < 0.65 and posted[me, tag]:
                request = draw.choice(posted[me, tag])
                box.withdraw(request)
                if not request.done:
                    posted[me, tag].remove(request)
            else:
                box.progress()
        for (source, me, tag), seeds in expected.items():
            posted[me, tag] += [receive(boxes[me], None, source, tag) for _ in seeds]
        for traffic in made.traffic:
            vars(traffic.carrier).pop("progress")
        made.run()
        taken: dict[tuple[int, int, int], int] = defaultdict(int)
        for (me, tag), requests in posted.items():
            for request in requests:
                if request.done:
                    assert request.tensor is not None
                    k = expected[request.source, me, tag][taken[request.source, me, tag]]
                    taken[request.source, me, tag] += 1
                    assert torch.equal(request.tensor, values(len(request.tensor), k))
        assert taken == {key: len(seeds) for key, seeds in expected.items() if seeds}


def test_a_broken_connection_keeps_what_has_come() -> None:
    with mailboxes("1+1") as made:
        a, b = made.boxes
        b.listen_to_all()
        for k in range(3):
            send(a, values(3, k), 1)
        while made.wires.move():
            pass
        made.wires.aborted = True
        got = [receive(b, None, 0) for _ in range(3)]
        late = send(a, values(9000), 1)
        made.run()
        assert got[0].done
        assert torch.equal(got[0].tensor, values(3, 0))
        assert not late.done
        assert [box.cut(rank)[0] for box, rank in ((a, 1), (b, 0))] == ["aborted"] * 2
        assert not a.progress()
        assert not b.progress(), "a broken stream is at rest"


def test_tags_differ_in_the_upper_half() -> None:
    seen: dict[int, set[tuple[int, int]]] = defaultdict(set)
    with mailboxes("1+1+1", prompt=True) as made:
        made.wires.spy = lambda key, _: seen[key[2]].add(key[:2])
        for me, box in enumerate(made.boxes):
            box.listen_to_all()
            for _ in range(20):  # more than half a window: there are answers
                send(box, values(900), (me + 1) % 3)
                send(box, values(900), (me + 2) % 3)
        made.run()
    assert len(seen) == 12, "messages and answers of six pairs"
    assert all(len(pairs) == 1 for pairs in seen.values())
    assert all(1 << 41 <= tag < 1 << 42 for tag in seen)


IMPOSSIBLE = {
    "rank 0 has sent .*a tensor of dtype 9999": {HeadWord.KIND: 9999 << 8},
    "rank 0 has sent .*12 bytes for float32": {HeadWord.NBYTES: 12},
    r"rank 0 has sent .*8 bytes for float32\[1099511627776\]": {HeadWord.SHAPE: 1 << 40},
    "rank 0 has sent .*a tensor of": {HeadWord.SHAPE: -1},
    "rank 1 of the world has acknowledged 99 pieces": {-1: 99},
}
"""Words of a head, or of an answer, that cannot be there."""


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_a_piece_that_cannot_be_is_refused(words: str) -> None:
    ((word, value),) = IMPOSSIBLE[words].items()
    from_1 = words.startswith("rank 1")

    def spoil(key: tuple[int, int, int], data: torch.Tensor) -> None:
        if key[0] == from_1:
            data.view(torch.int64)[word] = value

    with mailboxes("1+1") as made:
        a, b = made.boxes
        made.wires.spy = spoil
        b.listen_to_all()
        for _ in range(20 if from_1 else 1):
            send(a, torch.zeros(1000 if from_1 else 2), 1)
        with pytest.raises(InternalError, match=words):
            made.run()


def streams() -> int:
    return sum(issubclass(type(each), FarChannel) for each in gc.get_objects())  # isinstance() asks dead proxies


def test_ended_groups_leave_no_streams() -> None:
    gc.collect()
    before = streams()
    with mailboxes("1+1", prompt=True) as made:
        a, b = made.boxes
        for box in (a, b):
            box.listen_to_all()
        send(a, values(5), 1)
        send(b, values(5), 0)
        made.run()
        made.boxes.clear()
        a.leave()
        del a, b, box  # one that is dropped has ended, too
        gc.collect()
        assert streams() == before + 4, "the other side may still send"
        for traffic in made.traffic * 2:
            traffic.sweep()
            traffic.carrier.progress()
        for traffic in made.traffic:
            traffic.sweep()
        assert streams() == before
        assert made.wires.unmet == 0


@pytest.mark.parametrize(("limit_s", "is_gone"), [(60.0, True), (0.0, False)])
def test_end_does_not_wait_for_the_dead(limit_s: float, is_gone: bool) -> None:
    with mailboxes("1+1", prompt=True) as made:
        send(made.boxes[0], values(5), 1)
        made.boxes[0].leave()
        before = streams()
        made.traffic[0].close(limit_s, lambda _: is_gone)
        assert streams() == before > 0, "the carrier may touch their pieces"
