"""What sentinels of different hosts tell each other, as datagrams.

    tag | version, sender, receiver, counter, digest, kind | body

The tag authenticates the datagram: it is an HMAC of all other bytes. A sentinel checks it before it looks at anything
else. Each datagram to a host has a number of its own, so a copy that an attacker sends again does not count. Sizes are
bounded. A datagram in a wrong form is dropped as a whole. A body is a list in JSON.
"""

import hmac
import json
import struct
import zlib
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Iterator
from enum import IntEnum
from mmap import mmap
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ...engine.memory.board import BOARD_BYTES, LINE

_VERSION = 4
_TAG = 16
_HEAD = struct.Struct("<BHHQQB")
_MOST_NUMBER = 1 << 64
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
    """A member's control line and board. stamp: numbers a sentinel's pages, in order. packed: compressed, in base64."""

    member: int
    stamp: int
    packed: str

    @classmethod
    def of(cls, member: int, stamp: int, image: bytes) -> "MemberPage":
        return cls(member, stamp, b2a_base64(zlib.compress(image, 1), newline=False).decode())

    @property
    def image(self) -> bytes:
        """The line and the board, one behind the other. Raises ValueError if the page does not have them."""
        try:
            plain = zlib.decompressobj().decompress(a2b_base64(self.packed), IMAGE_BYTES + 1)
        except (ValueError, zlib.error) as error:
            raise ValueError(f"invalid image: {error}") from error
        if len(plain) != IMAGE_BYTES:
            raise ValueError(f"an image of {len(plain)} bytes, expected {IMAGE_BYTES}")
        return plain


class Heartbeat(NamedTuple):
    """The sender lives, and knows the facts of the datagram's digest.

    asks: the receiver shall answer with a heartbeat.
    hears: hosts that the sender has heard lately.
    """

    asks: bool = False
    hears: tuple[int, ...] = ()


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
        text = head + _packed(body)
        if _TAG + len(text) > MOST_BYTES:
            raise ValueError(f"a datagram of {len(text)} bytes is too long")
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
            return Datagram(sender, digest, _body(_KINDS[kind], parsed(text[_HEAD.size :])))
        except ValueError:
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


def _packed(part: Body | Fact | MemberPage) -> bytes:
    return json.dumps(part, separators=(",", ":")).encode()


def _number(text: str) -> int:
    if not 0 <= (number := int(text)) < _MOST_NUMBER:
        raise ValueError(f"not a number of 64 bits: {text:.30}")
    return number


def parsed(data: bytes) -> Any:
    """What has been sent in JSON; whole numbers have 64 bits. Raises ValueError."""
    try:
        return json.loads(data, parse_int=_number)
    except RecursionError as error:
        raise ValueError("not a message") from error


def _body(kind: type[Body], said: object) -> Body:
    match kind.__name__, said:
        case "Heartbeat", [bool(asks), [*hears]]:
            return Heartbeat(asks, tuple(host for host in hears if isinstance(host, int)))
        case "News", [[*facts]]:
            return News(tuple(map(_fact, facts)))
        case "Query", [int(gid), int(request)]:
            return Query(gid, request)
        case "Pages", [int(gid), int(request), [*pages]]:
            return Pages(gid, request, tuple(map(_page, pages)))
        case "Ack", [int(gid), int(member), int(stamp)]:
            return Ack(gid, member, stamp)
    raise ValueError("not a body")


def _fact(said: object) -> Fact:
    match said:
        case [int(kind), int(subject), int(how), str(words)]:
            return Fact(FactKind(kind), subject, how, words)
    raise ValueError("not a fact")


def _page(said: object) -> MemberPage:
    match said:
        case [int(member), int(stamp), str(packed)]:
            return MemberPage(member, stamp, packed)
    raise ValueError("not a page")


def batches(parts: Iterable[_Part]) -> Iterator[tuple[_Part, ...]]:
    """Facts or pages in groups that fit into one datagram each."""
    batch: list[_Part] = []
    size = 0
    for part in parts:
        more = len(_packed(part)) + 1
        if batch and size + more > _USUAL_BYTES:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(part)
        size += more
    if batch:
        yield tuple(batch)
