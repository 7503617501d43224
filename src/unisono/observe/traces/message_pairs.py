"""Messages between two ranks, each as its sender and its receiver have logged it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...base.units import format_bytes
from ...engine.logs.message_log import LoggedMessage


class MessageGroup(NamedTuple):
    """A group of one rank: where its memory begins, since when, its members as ranks of the world, its `Track.key`."""

    start: int
    since_ns: int
    members: Sequence[int]
    key: tuple[int, int, str]


class RankMessage(NamedTuple):
    """A message as one rank of the world has seen it: itself, and its peer; -1: any. said: what was logged.

    key: equal for the groups of both.
    """

    rank: int
    peer: int
    key: tuple[int, int, str]
    said: LoggedMessage

    @property
    def text(self) -> str:
        """Such as `send 8 B to 3`."""
        whom = "any rank" if self.peer < 0 else str(self.peer)
        kind, way = ("recv", "from") if self.said.is_receive else ("send", "to")
        return f"{kind} {format_bytes(self.said.nbytes)} {way} {whom}"


class MessagePair(NamedTuple):
    """One message: the send and the receive of it."""

    send: RankMessage
    receive: RankMessage

    @property
    def waited_ns(self) -> int:
        """How long the receiver has waited for the sender to come."""
        return max(0, min(self.send.said.entered_ns, self.receive.said.left_ns) - self.receive.said.entered_ns)


class MessageFlow(NamedTuple):
    """All messages from one rank to another. waited_ns: how long the receiver has waited for the sender."""

    sender: int
    receiver: int
    messages: int
    nbytes: int
    waited_ns: int


def rank_messages(rank: int, said: Iterable[LoggedMessage], groups: Sequence[MessageGroup]) -> list[RankMessage]:
    """The messages of a rank in these groups, oldest first."""
    found = []
    for one in said:
        known = [group for group in groups if group.start == one.group and group.since_ns <= one.entered_ns]
        if known and one.peer < len(known[-1].members):
            peer = known[-1].members[one.peer] if one.peer >= 0 else -1
            found.append(RankMessage(rank, peer, known[-1].key, one))
    return found


def pairs_of(messages: Iterable[RankMessage]) -> list[MessagePair]:
    """The messages that both sides have logged."""
    sends: dict[object, RankMessage] = {}
    receives: dict[object, RankMessage] = {}
    for one in messages:
        if one.said.place:
            ends = (one.peer, one.rank) if one.said.is_receive else (one.rank, one.peer)
            (receives if one.said.is_receive else sends)[one.key, ends, one.said.place] = one
    return [MessagePair(send, receives[key]) for key, send in sends.items() if key in receives]


def message_flows(pairs: Iterable[MessagePair]) -> list[MessageFlow]:
    """The messages by sender and receiver, those first that others have waited for longest."""
    found: dict[tuple[int, int], list[MessagePair]] = {}
    for pair in pairs:
        found.setdefault((pair.send.rank, pair.receive.rank), []).append(pair)
    rows = [
        MessageFlow(*ends, len(some), sum(one.send.said.nbytes for one in some), sum(one.waited_ns for one in some))
        for ends, some in found.items()
    ]
    return sorted(rows, key=lambda row: -row.waited_ns)
