"""Datagrams of sentinels: what is sent comes out; what others forge, cut, repeat or redirect does not."""

import hashlib
import hmac
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.base.records import DepartureKind
from unisono.hosts.sentinel import wire

pytestmark = pytest.mark.quick

SECRET = bytes(range(32))
IMAGE = random.Random(1).randbytes(wire.IMAGE_BYTES)
BODIES: list[wire.Body] = [
    wire.Heartbeat(),
    wire.Heartbeat(True, (0, 2, 15)),
    wire.News(()),
    wire.News((wire.Fact(wire.FactKind.LOST, 3), wire.Fact.gone(1000, DepartureKind.DIED, "wurde getötet"))),
    wire.Query((1 << 64) - 1, 5),
    wire.Pages(7, 0, (wire.MemberPage.of(0, 1, IMAGE), wire.MemberPage.of(3, 2, bytes(wire.IMAGE_BYTES)))),
    wire.Pages(7, 9, ()),
    wire.Ack(8, 2, 1 << 40),
    wire.Look(3, 1, 1 << 50),
    wire.Sight(1, 1 << 50, "packed"),
]


def pair(hosts: int = 4) -> tuple[wire.Authenticator, wire.Authenticator]:
    return wire.Authenticator(SECRET, 1, [0] * hosts, 0), wire.Authenticator(SECRET, 2, [0] * hosts, 0)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_only_the_whole_datagram_is_read(body: wire.Body) -> None:
    sender, receiver = pair()
    data = sender.seal(2, 77, body)
    for bit in range(0, 8 * min(len(data), 200), 3):
        forged = bytearray(data)
        forged[bit // 8] ^= 1 << bit % 8
        assert receiver.open(bytes(forged)) is None
    for length in range(0, len(data), 1 + len(data) // 50):
        assert receiver.open(data[:length]) is None
    assert receiver.open(data + b"\0") is None
    assert receiver.open(data) == wire.Datagram(1, 77, body)


@pytest.mark.parametrize(
    ("secret", "sender", "to"),
    [(bytes(32), 1, 2), (SECRET, 1, 3), (SECRET, 2, 2), (SECRET, 9, 2)],
    ids=["another secret", "to another host", "its own", "from no host of this job"],
)
def test_datagram_not_for_this_host_is_dropped(secret: bytes, sender: int, to: int) -> None:
    _, receiver = pair()
    assert receiver.open(wire.Authenticator(secret, sender, [0] * 10, 0).seal(to, 0, wire.Heartbeat())) is None


def test_repeated_and_late_datagrams_are_dropped() -> None:
    sender, receiver = pair()
    data = [sender.seal(2, 0, wire.Query(k, k)) for k in range(3000)]
    heard = [k for k in range(3000) if receiver.open(data[k]) and receiver.open(data[k]) is None]
    assert heard == list(range(3000))
    assert not any(map(receiver.open, data))
    sender, receiver = pair()
    data = [sender.seal(2, 0, wire.Query(k, k)) for k in range(3000)]
    order = [2999, *range(2900, 2950), 100, 2900, *range(2950, 2999)]
    heard = [k for k in order if receiver.open(data[k])]
    assert heard == [2999, *range(2900, 2950), *range(2950, 2999)]


NUMBERS = st.integers(-1, 1 << 65) | st.booleans() | st.floats()
NONSENSE = st.binary(max_size=80) | st.recursive(
    NUMBERS | st.text(max_size=5), lambda part: st.lists(part, max_size=4), max_leaves=12
).map(lambda said: json.dumps(said).encode())


@given(st.integers(0, 8), NONSENSE)
def test_signed_nonsense_is_dropped(kind: int, body: bytes) -> None:
    sender, receiver = pair()
    text = sender.seal(2, 0, wire.Heartbeat())[16:37] + bytes([kind]) + body
    datagram = receiver.open(hmac.digest(SECRET, text, hashlib.sha256)[:16] + text)
    assert datagram is None or isinstance(datagram.body, wire.Body)


@pytest.mark.parametrize(
    ("packed", "words"),
    [("", "image"), ("no image", "image"), (wire.MemberPage.of(0, 1, bytes(100)).packed, "image"),
     (wire.MemberPage.of(0, 1, bytes(50_000_000)).packed, f"image of {wire.IMAGE_BYTES + 1} bytes")],
    ids=["empty", "text", "short", "bomb"],
)  # fmt: skip
def test_invalid_image_is_a_value_error(packed: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _ = wire.MemberPage(0, 1, packed).image


def test_much_news_goes_in_several_datagrams() -> None:
    sender, receiver = pair()
    facts = [wire.Fact.gone(rank, DepartureKind.DIED, f"died as {rank} " * 40) for rank in range(50)]
    parts = [receiver.open(sender.seal(2, 0, wire.News(batch))) for batch in wire.batches(facts)]
    assert [fact for part in parts if part and isinstance(part.body, wire.News) for fact in part.body.facts] == facts
    assert len(parts) > 10
    assert all(len(fact.words.encode()) <= 300 for fact in facts)
    pages = [wire.MemberPage.of(k, k, IMAGE) for k in range(3)]
    assert [len(batch) for batch in wire.batches(pages)] == [1, 1, 1]
    with pytest.raises(ValueError, match="datagram"):
        sender.seal(2, 0, wire.Pages(7, 0, (pages[0],) * (wire.MOST_BYTES // wire.IMAGE_BYTES + 1)))
