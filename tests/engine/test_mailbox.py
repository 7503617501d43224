"""Mailboxes move messages of any kind, in order, whatever the interleaving of their steps."""

import ctypes
import random
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch

from tests.support.each import each
from tests.support.mailboxes import RING, Boxes, receive, run, send, values
from unisono.base.errors import InternalError, MessageMismatch
from unisono.engine.mailbox import ANY_SOURCE, Mailbox, Place, Receive, Send, requests
from unisono.engine.tensors import DTYPE_CODES


def place(tensor: torch.Tensor) -> Place:
    return tensor.data_ptr(), DTYPE_CODES[tensor.dtype], tensor.nbytes


def sent_at_once(box: Mailbox, tensor: torch.Tensor, to: int, tag: int) -> bool | Send:
    return box.send_at_once(tensor, place(tensor), to, tag)


def received_at_once(box: Mailbox, tensor: torch.Tensor, source: int, tag: int) -> bool | Receive:
    return box.receive_at_once(tensor, place(tensor), source, tag)


DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


@pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32) support is experimental")
@each("dtype", [dtype for dtype in DTYPES if "q" not in str(dtype)])
def test_every_dtype_is_moved_by_its_bytes(boxes: Callable[[int], Boxes], dtype: torch.dtype) -> None:
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
def test_new_tensor_has_the_shape_of_the_sent_one(boxes: Callable[[int], Boxes], shape: tuple[int, ...]) -> None:
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


def test_frames_of_all_lengths_and_places(boxes: Callable[[int], Boxes]) -> None:
    """Headers and payloads that end anywhere in the ring, some of them longer than it."""
    a, b = boxes(2)
    draw = random.Random(5)
    for k in range(600):
        nbytes = draw.choice([0, 1, 8, 63, 64, 65, RING - 64, RING, RING + 1, draw.randrange(3 * RING)])
        data = values(nbytes, k, torch.uint8)
        shape = [1] * draw.randrange(12) + [nbytes]
        sent = send(a, data.view(shape), 1, k)
        got = receive(b, None, 0, k)
        run(b, a)
        assert sent.done
        assert got.tensor.shape == tuple(shape)
        assert torch.equal(got.tensor.view(-1), data), k


@pytest.mark.parametrize("boxes", ["near"], indirect=True)
def test_short_sends_end_at_once_if_there_is_room(boxes: Callable[[int], Boxes]) -> None:
    a, b = boxes(2)
    sent = [send(a, values(8, k), 1) for k in range(100)]
    done = [request.done for request in sent]
    assert done == sorted(done, reverse=True)
    assert 20 < sum(done) < RING // 64
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
def test_tensors_of_any_layout_are_received_into(boxes: Callable[[int], Boxes], name: str) -> None:
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


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("count", [4, 4000])
@pytest.mark.parametrize("other", ["count", "dtype"])
def test_message_that_does_not_fit_is_refused(
    boxes: Callable[[int], Boxes], early: bool, count: int, other: str
) -> None:
    a, b = boxes(2)
    target = torch.full((count + (other == "count"),), -1, dtype=torch.int64 if other == "count" else torch.float64)
    if early:
        got = receive(b, target, 0, 3)
    sent = send(a, values(count).view(2, -1), 1, 3)
    send(a, values(5, 5), 1, 3)
    if not early:
        b.progress()  # a part of it is there
        got = receive(b, target, 0, 3)
    run(a, b)
    assert sent.done
    assert got.done
    assert isinstance(got.error, MessageMismatch)
    assert f"rank 0 sent int64[2, {count // 2}] with tag 3, but rank 1 receives it into" in str(got.error)
    assert f"{str(target.dtype).removeprefix('torch.')}[{len(target)}]" in str(got.error)
    assert str(got.error.again()) == str(got.error)
    assert (target == -1).all()
    assert torch.equal(receive(b, torch.empty(5, dtype=torch.int64), 0, 3).tensor, values(5, 5))


def test_unwritable_tensor_fails_only_its_receive(
    boxes: Callable[[int], Boxes], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = boxes(2)

    def refuse(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not this one")

    monkeypatch.setattr(requests, "as_bits", refuse)
    refused, fine = receive(b, torch.zeros(6, dtype=torch.int64)[::2], 0), receive(b, None, 0)
    for k in range(2):
        send(a, values(3, k), 1)
    run(a, b)
    assert isinstance(refused.error, RuntimeError)
    assert torch.equal(fine.tensor, values(3, 1))


@pytest.mark.parametrize("seed", range(8))
def test_any_interleaving_keeps_content_and_order(boxes: Callable[[int], Boxes], seed: int) -> None:
    """Random sends, receives and steps of three ranks: every tag of every pair is a queue of its own."""
    draw = random.Random(seed)
    ranks = 3
    made = boxes(ranks)
    sent: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    got: dict[tuple[int, int, int], list[Receive]] = defaultdict(list)
    for k in range(400):
        kind, me, peer, tag = draw.randrange(3), draw.randrange(ranks), draw.randrange(ranks), draw.randrange(2)
        count, at_once = draw.choice([1, 1, 10, 700, 2000]), draw.random() < 0.5
        if kind == 0:
            tensor = values(count, k)
            if not (at_once and sent_at_once(made[me], tensor, peer, tag)):
                send(made[me], tensor, peer, tag)
            sent[me, peer, tag].append(k)
        elif kind == 1:
            target = torch.full((count,), -1)
            taken = at_once and received_at_once(made[me], target, peer, tag)
            if taken is True:
                request = Receive(target, peer, tag)
                request.done = True
            elif taken:
                request = taken
            else:
                assert (target == -1).all()
                request = receive(made[me], None, peer, tag)
            got[peer, me, tag].append(request)
        else:
            made[me].progress()
    for (source, me, tag), seeds in sent.items():
        for _ in range(len(seeds) - len(got[source, me, tag])):
            got[source, me, tag].append(receive(made[me], None, source, tag))
    run(*made)
    for key, seeds in sent.items():
        for k, request in zip(seeds, got[key], strict=False):
            assert request.done
            assert torch.equal(request.tensor, values(len(request.tensor), k))


@pytest.mark.parametrize("boxes", ["near"], indirect=True)
def test_short_message_moves_at_once_or_not(boxes: Callable[[int], Boxes]) -> None:
    a, b = boxes(2)
    sent, target = values(50, 1), torch.full((50,), -1)
    assert not sent_at_once(a, sent, 1, 3), "there is no ring"
    send(a, sent, 1, 3)
    assert not received_at_once(b, target, 0, 3), "it does not know of the ring"
    run(b)
    assert b.unexpected_tags(0) == [3]
    assert sent_at_once(a, values(50, 2), 1, 3)
    assert not received_at_once(b, target, 0, 3), "another one has come before"
    assert torch.equal(receive(b, None, 0, 3).tensor, sent)
    for other, tag in ((target, 4), (target[1:], 3), (target.view(torch.float64), 3)):
        assert not received_at_once(b, other, 0, tag)
    early = receive(b, None, ANY_SOURCE, 3)
    assert not received_at_once(b, target, 0, 3), "another one waits for it"
    assert (target == -1).all()
    run(b)
    assert torch.equal(early.tensor, values(50, 2))
    filling = values(RING // 16)
    assert sent_at_once(a, filling, 1, 3)
    assert not sent_at_once(a, filling, 1, 3), "there is no room for so much"
    assert not sent_at_once(a, values(RING), 1, 3), "half of the ring is full"
    assert received_at_once(b, torch.empty_like(filling), 0, 3)
    assert sent_at_once(a, sent.view(5, 1, 10), 1, 3)
    assert received_at_once(b, target, 0, 3)
    assert torch.equal(target, sent)
    send(a, values(RING), 1, 3)
    assert not sent_at_once(a, sent, 1, 3), "another one waits for room"
    run(a, b)
    assert b.unexpected_tags(0) == [3]


@pytest.mark.parametrize("boxes", ["near"], indirect=True)
def test_long_send_starts_at_once(boxes: Callable[[int], Boxes]) -> None:
    a, b = boxes(2)
    meet = send(a, values(1), 1)
    run(a, b)
    assert torch.equal(receive(b, None, 0).tensor, meet.tensor)
    sent = [values(3 * RING, k) for k in range(3)]
    first = sent_at_once(a, sent[0], 1, 3)
    assert isinstance(first, Send)
    a.submit(first)  # once is enough
    for tensor in sent[1:]:
        assert not sent_at_once(a, tensor, 1, 3), "another one waits for room"
        send(a, tensor, 1, 3)
    target = received_at_once(b, torch.empty(3 * RING, dtype=sent[0].dtype), 0, 3)
    assert isinstance(target, Receive)
    assert not received_at_once(b, torch.empty_like(sent[0]), 0, 3), "the next one has not come"
    dropped = Receive(torch.empty_like(sent[0]), 0, 3)
    b.submit(dropped)
    run(a, b)
    assert target.done
    assert torch.equal(target.tensor, sent[0])
    assert torch.equal(dropped.tensor, sent[1])
    assert torch.equal(receive(b, None, 0, 3).tensor, sent[2])


@pytest.mark.parametrize("boxes", ["near"], indirect=True)
@pytest.mark.parametrize("offset", [-128, -(1 << 40), 4, (1 << 20) - 64, 1 << 45, 4096])
def test_a_ring_that_lies_elsewhere_is_refused(boxes: Callable[[int], Boxes], offset: int) -> None:
    """Out of the sender's heap, out of line, or where no ring is."""
    _, b = boxes(2)
    ctypes.c_int64.from_address(b._arena.mail(0, 1)).value = offset + 1
    receive(b, None, 0)
    with pytest.raises(InternalError, match=f"messages of rank 0 are not at byte {offset} of its heap"):
        b.progress()
