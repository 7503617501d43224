"""Mailboxes move messages of any kind; withdrawn or failed requests lose none. Storms are in test_far_mailbox.py."""

import ctypes
import random
from collections.abc import Sequence

import pytest
import torch

from tests.support.each import each
from tests.support.mailboxes import RING, Make, mailboxes, place, receive, run, send, values
from unisono.base.errors import ArgumentError, InternalError, MessageMismatch
from unisono.engine import tensors
from unisono.engine.kernels.ring_buffer import head_bytes
from unisono.engine.mailbox import Receive, Send
from unisono.engine.mailbox.far_channel import HEAD_BYTES

DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


@pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32) support is experimental")
@each("dtype", [dtype for dtype in DTYPES if "q" not in str(dtype)])
def test_every_dtype_is_moved_by_its_bytes(boxes: Make, dtype: torch.dtype) -> None:
    a, b = boxes(2)
    size = torch.empty(0, dtype=dtype).element_size()
    data = torch.arange(37 * size, dtype=torch.uint8)
    for k, early in enumerate((True, False)):
        target = torch.empty(37, dtype=dtype)
        if early:
            receive(b, target, 0, k)
        send(a, data.view(dtype), 1, k)
        if not early:
            run(b)
            receive(b, target, 0, k)
        run(a, b)
        assert torch.equal(target.view(torch.uint8), data)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 64, (2, 3, 4, 5)], ids=str)
def test_new_tensor_has_the_shape_of_the_sent_one(boxes: Make, shape: tuple[int, ...]) -> None:
    a, b = boxes(2)
    sent = values(torch.Size(shape).numel(), 3).view(shape)
    early = receive(b, None, 0)
    for _ in range(2):
        send(a, sent, 1)
    run(a, b)
    late = receive(b, None, 0)
    for got in (early, late):
        assert got.done
        assert got.tensor.dtype is torch.int64
        assert got.tensor.shape == shape
        assert torch.equal(got.tensor, sent)


INSIDE = HEAD_BYTES - head_bytes(1)
LENGTHS = 0, 1, 8, 63, 64, 65, RING - 64, RING, RING + 1, 4500, INSIDE - 1, INSIDE, HEAD_BYTES, 2 * RING + 1, 12 * RING


def test_frames_of_all_lengths_and_places(boxes: Make) -> None:
    """Headers and payloads that end anywhere in the ring, in the head or in pieces, some of them longer than a ring."""
    a, b = boxes(2)
    draw = random.Random(5)
    for k in range(600):
        nbytes, times, early = (
            draw.choice([*LENGTHS, draw.randrange(3 * RING)]),
            draw.randrange(1, 3),
            draw.random() < 0.5,
        )
        shape = [1] * draw.randrange(12) + [nbytes]
        posted = [receive(b, torch.zeros(nbytes, dtype=torch.uint8), 0, k) for _ in range(times) if early]
        sent = [send(a, values(nbytes, 10 * k + n, torch.uint8).view(shape), 1, k) for n in range(times)]
        posted = posted or [receive(b, None, 0, k) for _ in range(times)]
        run(b, a)
        for n, (request, got) in enumerate(zip(sent, posted, strict=True)):
            assert request.done
            assert early or got.tensor.shape == tuple(shape)
            assert torch.equal(got.tensor.view(-1), values(nbytes, 10 * k + n, torch.uint8)), k


@pytest.mark.parametrize(
    ("boxes", "room"), [("near", range(21, RING // 64)), ("far", [6 * RING // HEAD_BYTES])], indirect=["boxes"]
)
def test_short_sends_end_at_once_if_there_is_room(boxes: Make, room: Sequence[int]) -> None:
    a, b = boxes(2)
    sent = [send(a, values(8, k), 1) for k in range(100)]
    done = [request.done for request in sent]
    assert done == sorted(done, reverse=True)
    assert sum(done) in room
    assert not a.progress(), "there is no room"
    run(b)
    assert a.progress()
    run(a, b)
    assert all(request.done for request in sent)
    for k in range(100):
        assert torch.equal(receive(b, None, 0).tensor, values(8, k))


def layouts(count: int) -> dict[str, torch.Tensor]:
    wide = torch.zeros(count, 3, dtype=torch.complex64)
    return {
        "column": wide[:, 1],
        "transposed": torch.zeros(3, count // 3, dtype=torch.complex64).t(),
        "conjugate": torch.zeros(count, dtype=torch.complex64).conj(),
        "conjugate column": wide[:, 2].conj(),
        "other shape": torch.zeros(1, count, 1, dtype=torch.complex64),
    }


@pytest.mark.parametrize("name", layouts(3))
def test_tensors_of_any_layout_are_received_into(boxes: Make, name: str) -> None:
    sent = torch.complex(*torch.randn(2, 900, generator=torch.Generator().manual_seed(3)))
    for early in (True, False):
        a, b = boxes(2)
        target = layouts(900)[name]
        around = target._base.clone() if name == "column" else None
        if early:
            receive(b, target, 0)
        send(a, sent, 1)
        run(a, b)
        if not early:
            receive(b, target, 0)
        assert torch.equal(target.reshape(-1), sent)
        if around is not None:
            assert torch.equal(target._base[:, [0, 2]], around[:, [0, 2]])


UNFIT = {
    "count": ("int64[2, {}]", lambda count: torch.full((count + 1,), -1), "int64[{}]"),
    "dtype": ("int64[2, {}]", lambda count: torch.full((count,), -1.0, dtype=torch.float64), "float64[{}]"),
    "newer torch": ("float16[2, {}]", lambda _: None, "any dtype of torch"),
}
"""What is sent, which has two rows; into what it is received; and what the error says of it."""


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("count", [4, 4000])
@pytest.mark.parametrize("other", UNFIT)
def test_message_that_does_not_fit_is_refused(
    boxes: Make, monkeypatch: pytest.MonkeyPatch, early: bool, count: int, other: str
) -> None:
    (sent_as, make, into), (a, b) = UNFIT[other], boxes(2)
    target = make(count)
    dtype = getattr(torch, sent_as.partition("[")[0])
    if target is None:  # this torch does not know what another one has sent
        monkeypatch.delitem(tensors.DTYPES, tensors.DTYPE_CODES[dtype])
    if early:
        got = receive(b, target, 0, 3)
    sent = send(a, values(count).to(dtype).view(2, -1), 1, 3)
    send(a, values(5, 5), 1, 3)
    if not early:
        b.progress()  # a part of it is there
        got = receive(b, target, 0, 3)
    run(a, b)
    assert sent.done
    assert got.done
    assert isinstance(got.error, MessageMismatch)
    told = f"rank 0 sent {sent_as.format(count // 2)} with tag 3, but rank 1 receives it into "
    assert told + into.format(0 if target is None else len(target)) in str(got.error)
    assert str(got.error.again()) == str(got.error)
    assert target is None or (target == -1).all()
    assert torch.equal(receive(b, torch.empty(5, dtype=torch.int64), 0, 3).tensor, values(5, 5))


def test_unwritable_tensor_fails_only_its_receive(boxes: Make) -> None:
    a, b = boxes(2)
    refused, fine = receive(b, torch.zeros(1, dtype=torch.int64).expand(3), 0), receive(b, None, 0)
    for k in range(2):
        send(a, values(3, k), 1)
    run(a, b)
    assert isinstance(refused.error, RuntimeError)
    assert torch.equal(fine.tensor, values(3, 1))


@pytest.mark.parametrize("boxes", ["near"], indirect=True)
def test_messages_move_at_once_after_the_first(boxes: Make) -> None:
    """A short one as a whole, a long one in part. Which ones must not is part of the storms."""
    a, b = boxes(2)
    meet, short, long = values(1), values(50, 1).view(5, 1, 10), values(3 * RING, 2)
    assert not a.send_at_once(meet, place(meet), 1, 3), "there is no ring"
    send(a, meet, 1, 3)
    run(a, b)
    assert torch.equal(receive(b, None, 0, 3).tensor, meet)
    target = torch.full((50,), -1)
    assert a.send_at_once(short, place(short), 1, 3) is True
    assert b.receive_at_once(target, place(target), 0, 3) is True
    assert torch.equal(target, short.view(-1))
    sent, target = a.send_at_once(long, place(long), 1, 3), torch.empty_like(long)
    got = b.receive_at_once(target, place(target), 0, 3)
    assert isinstance(sent, Send)
    assert isinstance(got, Receive)
    a.submit(sent)  # once is enough
    run(a, b)
    assert sent.done
    assert got.done
    assert torch.equal(target, long)
    assert not b.unexpected_tags(0)


@pytest.mark.parametrize("offset", [-128, -(1 << 40), 4, (1 << 20) - 64, 1 << 45, 4096])
def test_a_ring_that_lies_elsewhere_is_refused(offset: int) -> None:
    """Out of the sender's heap, out of line, or where no ring is."""
    with mailboxes("1x2") as made:
        ctypes.c_int64.from_address(made.arenas[0].mail(0, 1)).value = offset + 1
        receive(made.boxes[1], None, 0)
        with pytest.raises(InternalError, match=f"messages of rank 0 are not at byte {offset} of its heap"):
            made.boxes[1].progress()


@pytest.mark.parametrize("boxes", ["near"], indirect=True)
def test_a_withdrawn_receive_loses_nothing(boxes: Make) -> None:
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


def test_withdrawn_refusal_drops_its_message(boxes: Make) -> None:
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


def test_failed_requests_hear_why_once(boxes: Make) -> None:
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
