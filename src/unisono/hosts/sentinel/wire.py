"""What sentinels of different hosts tell each other, as datagrams.

    tag | version, sender, receiver, counter, digest, kind | body

The tag authenticates the datagram: it is an HMAC of all other bytes. A sentinel checks it before it looks at anything
else. Each datagram to a host has a number of its own, so a copy that an attacker sends again does not count. Sizes are
bounded. A datagram in a wrong form is dropped as a whole.
"""

import hmac
import struct
import zlib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from mmap import mmap
from typing import NamedTuple, TypeAlias, TypeVar

from ...engine.memory.board import BOARD_BYTES, LINE

_VERSION = 3
_TAG = 16
_HEAD = struct.Struct("<BHHQQB")
_FACT, _PAGE, _PAGES, _QUERY, _ACK = map(struct.Struct, ("<BIBH", "<IQH", "<QQ", "<QQ", "<QIQ"))
IMAGE_BYTES = LINE + BOARD_BYTES
"""The bytes of a member's control line and board."""
MOST_BYTES = 60_000
"""The most bytes of a datagram; UDP allows a few thousand more."""
_USUAL_BYTES = 1200
"""The most bytes of a datagram with several parts: most networks do not fragment datagrams of this size."""
_MOST_WORDS = 300
_WINDOW = 1024  # how many datagrams may overtake each other
_ALL = (1 << _WINDOW) - 1


class FactKind(IntEnum):
    """What a fact is about."""

    GONE = 0  # a rank: its process has ended, or has left its sentinel
    LOST = 1  # a host: it has been silent for too long, or one of two that exchange no messages
    LEFT = 2  # a host: all its ranks have ended or left, and so has its sentinel


class Fact(NamedTuple):
    """A fact that stays true. subject: a rank, or the number of a host. how, words: a rank's `Departure`. words: also
    why a host is lost, as the end of the sentence "the host ...".
    """

    kind: FactKind
    subject: int
    how: int = 0
    words: str = ""

    @classmethod
    def gone(cls, rank: int, how: int, words: str) -> "Fact":
        """A rank has gone. Long words are cut, so that they are the same everywhere."""
        short = words.encode(errors="replace")[:_MOST_WORDS].decode(errors="ignore")
        return cls(FactKind.GONE, rank, int(how), short)


class MemberPage(NamedTuple):
    """A member's control line and board. stamp: numbers a sentinel's pages, in order. packed: compressed."""

    member: int
    stamp: int
    packed: bytes

    @classmethod
    def of(cls, member: int, stamp: int, image: bytes) -> "MemberPage":
        return cls(member, stamp, zlib.compress(image, 1))

    @property
    def image(self) -> bytes:
        """The line and the board, one behind the other. Raises ValueError if the page does not have them."""
        try:
            plain = zlib.decompressobj().decompress(self.packed, IMAGE_BYTES + 1)
        except zlib.error as error:
            raise ValueError(f"no image: {error}") from error
        if len(plain) != IMAGE_BYTES:
            raise ValueError(f"an image of {len(plain)} bytes")
        return plain


class Heartbeat(NamedTuple):
    """The sender lives, and knows the facts of the datagram's digest.

    asks: the receiver shall answer with a heartbeat.
    hears: hosts that the sender has heard lately, as bits.
    """

    asks: bool = False
    hears: bytes = b""


class News(NamedTuple):
    """Facts. The receiver may know them already."""

    facts: tuple[Fact, ...]


class Query(NamedTuple):
    """Asks for the pages of this group's members on the receiver's host. request: a number that the answer repeats."""

    gid: int
    request: int


class Pages(NamedTuple):
    """Some of the pages of a group; none: no rank of the sender's host has used the group yet.

    request: the question's number; 0: the pages were pushed, and the receiver acknowledges them.
    """

    gid: int
    request: int
    pages: tuple[MemberPage, ...]


class Ack(NamedTuple):
    """A pushed page has come."""

    gid: int
    member: int
    stamp: int


Body: TypeAlias = Heartbeat | News | Query | Pages | Ack
_KINDS: tuple[type[Body], ...] = (Heartbeat, News, Query, Pages, Ack)
_Part = TypeVar("_Part", Fact, MemberPage)


class Datagram(NamedTuple):
    """A host's message. digest: of all facts that it knew."""

    sender: int
    digest: int
    body: Body


def shared_numbers(count: int) -> memoryview:
    """Numbers of 64 bits in memory that this process shares with processes that it forks."""
    return memoryview(mmap(-1, 8 * count)).cast("Q")


class Authenticator:
    """Signs datagrams that a host sends, and checks datagrams that it gets."""

    def __init__(self, secret: bytes, me: int, hosts: int) -> None:
        self._secret, self._me = secret, me
        self._sent, self._highest = shared_numbers(hosts), shared_numbers(hosts)
        self._seen = [(0, 0)] * hosts  # host -> the highest number, and which numbers up to it have come, as bits

    def seal(self, to: int, digest: int, body: Body) -> bytes:
        """The datagram to that host. Raises ValueError if it would be too long."""
        self._sent[to] += 1
        head = _HEAD.pack(_VERSION, self._me, to, self._sent[to], digest, _KINDS.index(type(body)))
        text = head + _pack(body)
        if _TAG + len(text) > MOST_BYTES:
            raise ValueError(f"a datagram of {len(text)} bytes")
        return self._tag(text) + text

    def open(self, data: bytes) -> Datagram | None:
        """The datagram in these bytes; None if it is not new, or not from a sentinel of this job to this one."""
        tag, text = data[:_TAG], data[_TAG:]
        if len(data) > MOST_BYTES or len(text) < _HEAD.size or not hmac.compare_digest(tag, self._tag(text)):
            return None
        version, sender, to, number, digest, kind = _HEAD.unpack_from(text)
        wrong = version != _VERSION or to != self._me or sender == self._me or sender >= len(self._seen)
        if wrong or kind >= len(_KINDS) or not self._is_new(sender, number):
            return None
        try:
            return Datagram(sender, digest, _unpack(_KINDS[kind], text[_HEAD.size :]))
        except (struct.error, ValueError):
            return None

    def _tag(self, text: bytes) -> bytes:
        return hmac.digest(self._secret, text, "sha256")[:_TAG]

    def _is_new(self, sender: int, number: int) -> bool:
        highest, heard = self._seen[sender]
        if highest != self._highest[sender]:  # another process has gone on meanwhile: all that it may have read counts
            highest, heard = self._highest[sender], _ALL
        if number > highest:
            heard = (heard << min(number - highest, _WINDOW) | 1) & _ALL
            self._seen[sender], self._highest[sender] = (number, heard), number
            return True
        bit = 1 << highest - number if highest - number < _WINDOW else 0
        if not bit or heard & bit:
            return False
        self._seen[sender] = highest, heard | bit
        return True


def _pack(body: Body) -> bytes:
    match body:
        case Heartbeat(asks, hears):
            return bytes([asks]) + hears
        case News(facts):
            return b"".join(map(_pack_fact, facts))
        case Query(gid, request):
            return _QUERY.pack(gid, request)
        case Pages(gid, request, pages):
            return _PAGES.pack(gid, request) + b"".join(map(_pack_page, pages))
        case Ack():
            return _ACK.pack(*body)


def _pack_fact(fact: Fact) -> bytes:
    words = fact.words.encode()
    return _FACT.pack(fact.kind, fact.subject, fact.how, len(words)) + words


def _pack_page(page: MemberPage) -> bytes:
    return _PAGE.pack(page.member, page.stamp, len(page.packed)) + page.packed


def _unpack(kind: type[Body], data: bytes) -> Body:
    if kind is Heartbeat:
        return Heartbeat(data[:1] == b"\1", data[1:])
    if kind is News:
        return News(tuple(
            Fact(FactKind(which), subject, how, words.decode(errors="replace"))
            for (which, subject, how, _), words in _parts(_FACT, data)
        ))  # fmt: skip
    if kind is Query:
        return Query(*_QUERY.unpack(data))
    if kind is Ack:
        return Ack(*_ACK.unpack(data))
    gid, request = _PAGES.unpack_from(data)
    pages = tuple(
        MemberPage(member, stamp, packed) for (member, stamp, _), packed in _parts(_PAGE, data[_PAGES.size :])
    )
    return Pages(gid, request, pages)


def _parts(head: struct.Struct, data: bytes) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Heads, and the bytes behind each: the last field of a head is their length."""
    at = 0
    while at < len(data):
        fields = head.unpack_from(data, at)
        at += head.size + fields[-1]
        if at > len(data):
            raise ValueError("cut off")
        yield fields, data[at - fields[-1] : at]


def batches(parts: Iterable[_Part]) -> Iterator[tuple[_Part, ...]]:
    """Facts or pages in groups that fit into one datagram each."""
    batch: list[_Part] = []
    size = 0
    for part in parts:
        more = len(_pack_fact(part) if isinstance(part, Fact) else _pack_page(part))
        if batch and size + more > _USUAL_BYTES:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(part)
        size += more
    if batch:
        yield tuple(batch)
