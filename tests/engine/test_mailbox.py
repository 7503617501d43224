"""Mailboxes move messages of any kind, on one host and between hosts; withdrawn or failed requests lose none."""

import ctypes
import gc
import random
from collections import defaultdict

import pytest
import torch

from tests.support.mailboxes import Boxes, Mailboxes, place, receive, run, send, values
from unisono.base.errors import ArgumentError, InternalError, MessageMismatch
from unisono.engine import tensors
from unisono.engine.kernels.ring_buffer import HeadWord, head_bytes
from unisono.engine.mailbox import ANY_SOURCE, Receive, Send
from unisono.engine.mailbox.far_channel import HEAD_BYTES, FarChannel

pytestmark = pytest.mark.usefixtures("small")

DTYPES = [dtype for dtype in tensors.DTYPE_CODES if "q" not in str(dtype)]
HEAD = (HEAD_BYTES - head_bytes(1)) // 8
"""The most numbers that fit into a head."""


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


class Storm:
    """Sends, receives and cancellations at random, some of them at once.

    sent, expected: every message by its number, and the numbers of those that have not been withdrawn.
    posted: the receives in order. dropped: the targets of those that were withdrawn. at_once: what has been tried.
    """

    def __init__(self, made: Mailboxes, draw: random.Random) -> None:
        self.boxes, self.draw, self.sent = made.boxes, draw, list[torch.Tensor]()
        self.expected: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.posted: dict[tuple[int, int], list[Receive]] = defaultdict(list)
        self.pending: list[tuple[int, int, Send | bool, torch.Tensor]] = []
        self.dropped: list[torch.Tensor] = []
        self.at_once: set[object] = set()

    def step(self) -> None:
        kind, me = self.draw.random(), self.draw.randrange(len(self.boxes))
        peer, tag = self.draw.randrange(len(self.boxes)), self.draw.randrange(3)
        if kind < 0.2:
            self.send(me, peer, tag)
            if self.draw.random() < 0.5:
                self.receive(peer, me, tag, at_once=True)
        elif kind < 0.4:
            self.receive(me, peer, tag, at_once=self.draw.random() < 0.2)
        elif kind < 0.43 and self.pending:
            self.withdraw_send()
        elif kind < 0.46 and self.posted[me, tag]:
            self.withdraw_receive(me, self.posted[me, tag])
        else:
            self.boxes[me].progress()

    def send(self, me: int, peer: int, tag: int) -> None:
        draw, number, box = self.draw, len(self.sent), self.boxes[me]
        dtype = draw.choice([torch.int64, draw.choice(DTYPES)])
        count = draw.choice([0, 1, 2, 2, HEAD, HEAD + 1, 700, 5000, draw.randrange(1600)])
        shape = [*[1] * draw.choice([0, 0, 1, 63]), count]
        data = values(count * dtype.itemsize, number, torch.uint8) & (1 if dtype is torch.bool else 255)
        tensor = data.clone().view(dtype).view(shape)  # not every dtype can be copied
        self.sent.append(data.view(dtype).view(shape))
        self.expected[me, peer, tag].append(number)
        sent = draw.random() < 0.5 and box.send_at_once(tensor, place(tensor), peer, tag)
        self.at_once.add(("sent", type(sent), sent is True))
        self.pending.append((number, me, sent or send(box, tensor, peer, tag), tensor))

    def receive(self, me: int, peer: int, tag: int, at_once: bool) -> None:
        """Mostly into a tensor like the last one that was sent; there may be others before that."""
        draw, box, numbers = self.draw, self.boxes[me], self.expected[peer, me, tag]
        like = self.sent[numbers[-1]] if numbers else torch.empty(3, dtype=torch.float64)
        target = torch.full((like.nbytes,), 255, dtype=torch.uint8).view(like.dtype)
        got: bool | Receive = False
        if at_once:
            got = box.receive_at_once(target, place(target), peer, tag)
            self.at_once.add(("received", type(got), got is True))
            assert got or (raw(target) == 255).all()
        if got is True:
            got = Receive(target, peer, tag)
            got.done = True
        into = None if draw.random() < 0.5 else target
        self.posted[me, tag].append(got or receive(box, into, draw.choice([peer, ANY_SOURCE]), tag))

    def withdraw_send(self) -> None:
        number, me, request, tensor = self.pending.pop(self.draw.randrange(len(self.pending)))
        if isinstance(request, Send) and not request.done:
            error = ArgumentError("for this test")
            if self.boxes[me].withdraw(request, error) is None:
                next(numbers for numbers in self.expected.values() if number in numbers).remove(number)
            assert (request.error, self.boxes[me].finished[-1]) == (error, request)
        raw(tensor).fill_(254)

    def withdraw_receive(self, me: int, posted: list[Receive]) -> None:
        """One of which a part has come, if there is one. If it has refused the message, it ends, but not the rest."""
        begun = [one for one in posted if one.message is not None and not one.done]
        request = self.draw.choice(begun or posted)
        refused = request in begun and request.error is not None
        assert (self.boxes[me].withdraw(request) is not None) == refused
        if not request.done:
            posted.remove(request)
            if request.tensor is not None:
                raw(request.tensor).fill_(253)
                self.dropped.append(request.tensor)

    def check(self) -> None:
        """All messages have come."""
        taken: dict[tuple[int, int, int], int] = defaultdict(int)
        for (me, tag), requests in self.posted.items():
            for request in (one for one in requests if one.done):
                assert request.tensor is not None or request.error
                key = request.source, me, tag
                of = self.sent[self.expected[key][taken[key]]]
                taken[key] += 1
                if request.error is not None:
                    assert isinstance(request.error, MessageMismatch)
                    assert (request.tensor.dtype, request.tensor.nbytes) != (of.dtype, of.nbytes)
                    assert (raw(request.tensor) == 255).all()
                else:
                    assert (request.tensor.dtype, request.tensor.numel()) == (of.dtype, of.numel())
                    assert torch.equal(raw(request.tensor), raw(of))
                    assert request.plain or request.tensor.shape == of.shape
        assert taken == {key: len(numbers) for key, numbers in self.expected.items() if numbers}
        assert all((raw(target) == 253).all() for target in self.dropped)


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


@pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32) support is experimental")
@pytest.mark.parametrize("hosts", ["1x2", "1x3", "1+1+1", "2+1", "2+2:round_robin", "1+2+1:round_robin"])
@pytest.mark.parametrize("seed", range(5))
def test_a_storm(hosts: str, seed: int) -> None:
    """Every message that has not been withdrawn is received once, as it was sent, or refused by its receive.

    Of those of one rank and one tag, a receive that was posted before another one takes the earlier one.
    """
    draw = random.Random(seed)
    with Mailboxes(hosts, seed=seed) as made:
        all_together(made, draw)
        storm = Storm(made, draw)
        for box in made.boxes:
            box.listen_to_all()
        for _ in range(600):
            storm.step()
        for (source, me, tag), numbers in storm.expected.items():
            storm.posted[me, tag] += [receive(made.boxes[me], None, source, tag) for _ in numbers]
        for traffic in made.traffic:
            vars(traffic.carrier).pop("progress")
        made.run()
        storm.check()
        if hosts == "1x3":
            assert storm.at_once >= {("sent", bool, True), ("sent", Send, False), ("received", bool, True)}


def test_short_sends_end_at_once_if_there_is_room(boxes: Boxes) -> None:
    a, b = boxes
    sent = [send(a, values(8, k), 1) for k in range(100)]
    done = [request.done for request in sent]
    assert done == sorted(done, reverse=True)
    assert 5 <= sum(done) < 64
    assert not a.progress(), "there is no room"
    run(a, b)
    assert all(request.done for request in sent)


UNFIT = {
    "count": ("int64", torch.int64, "int64[9]"),
    "dtype": ("int64", torch.float64, "float64[9]"),
    "newer torch": ("float16", None, "any dtype of torch"),
}
"""The dtype of what is sent; into what it is received; and what the error says of that."""


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("other", UNFIT)
def test_refusal_tells_what_does_not_fit(
    boxes: Boxes, monkeypatch: pytest.MonkeyPatch, early: bool, other: str
) -> None:
    (sent_as, dtype, into), (a, b) = UNFIT[other], boxes
    if dtype is None:  # this torch does not know what another one has sent
        monkeypatch.delitem(tensors.DTYPES, tensors.DTYPE_CODES[getattr(torch, sent_as)])
    target = None if dtype is None else torch.full((9,), -1, dtype=dtype)
    got = receive(b, target, 0, 3) if early else None
    send(a, values(4000).to(getattr(torch, sent_as)).view(2, -1), 1, 3)
    if got is None:
        b.progress()  # a part of it is there
        got = receive(b, target, 0, 3)
    run(a, b)
    assert isinstance(got.error, MessageMismatch)
    assert f"rank 0 sent {sent_as}[2, 2000] with tag 3, but rank 1 receives it into {into}" in str(got.error)
    assert str(got.error.again()) == str(got.error)


def test_unwritable_tensor_fails_only_its_receive(boxes: Boxes) -> None:
    a, b = boxes
    refused, fine = receive(b, torch.zeros(1, dtype=torch.int64).expand(3), 0), receive(b, None, 0)
    for k in range(2):
        send(a, values(3, k), 1)
    run(a, b)
    assert isinstance(refused.error, RuntimeError)
    assert torch.equal(fine.tensor, values(3, 1))


@pytest.mark.parametrize("offset", [-128, -(1 << 40), 4, (1 << 20) - 64, 1 << 45, 4096])
def test_a_ring_that_lies_elsewhere_is_refused(offset: int) -> None:
    """Out of the sender's heap, out of line, or where no ring is."""
    with Mailboxes("1x2") as made:
        ctypes.c_int64.from_address(made.arenas[0].mail(0, 1)).value = offset + 1
        receive(made.boxes[1], None, 0)
        with pytest.raises(InternalError, match=f"messages of rank 0 are not at byte {offset} of its heap"):
            made.boxes[1].progress()


def test_unheard_peers_send_nothing() -> None:
    with Mailboxes("1+1+1") as made:
        a, b, c = made.boxes
        for box in (a, c):
            send(box, values(9, 1), 1)
        for source, seen in ((None, ([], [])), (2, ([], [0])), (ANY_SOURCE, ([0], [0]))):
            assert source is None or not receive(b, None, source, 5).done
            made.run()
            assert (b.unexpected_tags(0), b.unexpected_tags(2)) == seen


def test_a_broken_connection_keeps_what_has_come() -> None:
    with Mailboxes("1+1") as made:
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
        assert [how and how[0] for how in (a.cut(1), b.cut(0))] == ["aborted"] * 2
        assert not a.progress()
        assert not b.progress(), "a broken stream is at rest"


def test_tags_differ_in_the_upper_half() -> None:
    seen: dict[int, set[tuple[int, int]]] = defaultdict(set)
    with Mailboxes("1+1+1", prompt=True) as made:
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


IMPOSSIBLE: dict[str, dict[int, int]] = {
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

    with Mailboxes("1+1") as made:
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
    with Mailboxes("1+1", prompt=True) as made:
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
    with Mailboxes("1+1", prompt=True) as made:
        send(made.boxes[0], values(5), 1)
        made.boxes[0].leave()
        before = streams()
        made.traffic[0].close(limit_s, lambda _: is_gone)
        assert streams() == before > 0, "the carrier may touch their pieces"
