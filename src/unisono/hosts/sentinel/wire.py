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
from collections.abc import Iterable, Iterator, MutableSequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

from ...engine.memory.board import BOARD_BYTES, LINE

_VERSION = 5
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
        return cls(member, stamp, compressed(image))

    @property
    def image(self) -> bytes:
        """The line and the board, one behind the other. Raises ValueError if the page does not have them."""
        plain = decompressed(self.packed, IMAGE_BYTES + 1)
        if len(plain) != IMAGE_BYTES:
            raise ValueError(f"an image of {len(plain)} bytes, expected {IMAGE_BYTES}")
        return plain


def compressed(data: bytes) -> str:
    """These bytes compressed, in base64."""
    return b2a_base64(zlib.compress(data, 1), newline=False).decode()


def decompressed(text: str, most: int) -> bytes:
    """The same bytes, or the first ones. Raises ValueError."""
    try:
        return zlib.decompressobj().decompress(a2b_base64(text), most)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"invalid image: {error}") from error


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


class Look(NamedTuple):
    """Asks what this rank of the receiver's host does now. asker, ticket: the rank that asks, and its number for it."""

    rank: int
    asker: int
    ticket: int


class Sight(NamedTuple):
    """What a rank does, as an answer to `Look`; see `sights`."""

    asker: int
    ticket: int
    packed: str


Body: TypeAlias = Heartbeat | News | Query | Pages | Ack | Look | Sight
_KINDS: tuple[type[Body], ...] = (Heartbeat, News, Query, Pages, Ack, Look, Sight)
_Part = TypeVar("_Part", Fact, MemberPage)


class Datagram(NamedTuple):
    """A host's message. digest: of all facts that it knew."""

    sender: int
    digest: int
    body: Body


class Authenticator:
    """Signs datagrams that a host sends, and checks datagrams that it gets.

    highest: host -> the highest number of a datagram that has come, also to a process that has served before.
    first: above all numbers of datagrams that such a process has sent.
    """

    def __init__(self, secret: bytes, me: int, highest: "MutableSequence[int] | memoryview", first: int) -> None:
        self._secret, self._me = secret, me
        self._sent, self._highest = [first] * len(highest), highest
        self._seen = [(number, _ALL if number else 0) for number in highest]
        """Host -> the highest number, and which numbers up to it have come, as bits. What another process may have read
        counts as read.
        """

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
            return Datagram(sender, digest, _read(_KINDS[kind], parsed(text[_HEAD.size :])))
        except ValueError:
            return None

    def _tag(self, text: bytes) -> bytes:
        return hmac.digest(self._secret, text, "sha256")[:_TAG]

    def _is_new(self, sender: int, number: int) -> bool:
        highest, heard = self._seen[sender]
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


def _read(kind: Any, said: Any) -> Any:
    """A value of this type, as JSON has it. Raises ValueError."""
    parts = said if isinstance(said, list) else []
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], part) for part in parts)
    if hasattr(kind, "_fields") and len(parts) == len(kind._fields):
        return kind(*map(_read, kind.__annotations__.values(), parts))
    if kind is FactKind:
        return FactKind(said)
    if type(said) is not kind:
        raise ValueError(f"not a {kind.__name__}")
    return said


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
