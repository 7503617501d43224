"""The streams of all groups of a process over one carrier, and the group that each belongs to."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from ...base.records import digest
from ..carrier import Carrier
from .far_channel import Pieces
from .far_ends import FarReceiveChannel, FarSendChannel

_ASK_S = 0.0005
_Stream: TypeAlias = FarReceiveChannel | FarSendChannel
_Kept = TypeVar("_Kept", FarReceiveChannel, FarSendChannel)


class CarrierStreams:
    """Keeps streams as long as the carrier may touch their pieces, also when their mailboxes have ended."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier, self.pieces = carrier, Pieces(carrier)
        self._streams: list[_Stream] = []
        self._lock = threading.RLock()

    def keep(self, stream: _Kept) -> _Kept:
        with self._lock:
            self.sweep()
            self._streams.append(stream)
        return stream

    def sweep(self) -> None:
        """End the streams of mailboxes that have ended: messages that they have sent can still be received. Forget the
        streams that are over.
        """
        with self._lock:
            for stream in self._streams:
                if stream.left:
                    stream.end()
            self._streams = [stream for stream in self._streams if not (stream.left and stream.catch_up())]

    def close(self, limit_s: float, gone: Callable[[int], bool]) -> None:
        """The carrier ends: wait until all sent messages have been received, but not longer than limit_s.

        gone: tells whether a rank of the world has gone; its messages are not waited for.
        """
        until = time.monotonic() + limit_s
        for stream in list(self._streams):
            stream.left = True
        self.sweep()
        while any(isinstance(each, FarSendChannel) and not gone(each.peer) for each in list(self._streams)):
            if time.monotonic() > until:
                return
            time.sleep(_ASK_S)
            self.carrier.progress()
            self.sweep()


@dataclass(frozen=True)
class FarPeers:
    """The members of a group that are on other hosts.

    rank: this rank's number in the group.
    ranks: the members on other hosts.
    gid: the group's number, the same on all members.
    """

    rank: int
    ranks: frozenset[int]
    world_ranks: Sequence[int]
    gid: int
    traffic: CarrierStreams

    def sender(self, receiver: int) -> FarSendChannel:
        """The stream to a rank."""
        peer, tags = self.world_ranks[receiver], self._tags(self.rank, receiver)
        return self.traffic.keep(FarSendChannel(self.traffic.pieces, peer, tags))

    def receiver(self, source: int) -> FarReceiveChannel:
        """The stream from a rank."""
        peer, tags = self.world_ranks[source], self._tags(source, self.rank)
        return self.traffic.keep(FarReceiveChannel(self.traffic.pieces, peer, tags, source))

    def _tags(self, source: int, receiver: int) -> tuple[int, int]:
        """The tags of pieces and of answers. They are in the upper half: collectives use the lower half."""
        quarter = self.traffic.carrier.tags // 4
        tag = 2 * quarter + digest("messages", self.gid, source, receiver) % quarter * 2
        return tag, tag + 1
