"""The streams of all groups of a process over one carrier, and the group that each belongs to."""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...base.records import digest
from ..carrier import Carrier, Handle
from .far_channel import Pieces
from .far_ends import FarReceiveChannel, FarSendChannel

_ASK_S = 0.0005
_Stream: TypeAlias = FarReceiveChannel | FarSendChannel


class CarrierStreams:
    """Keeps streams as long as the carrier may touch their pieces, also when their groups have ended. sent: see
    `Pieces`.
    """

    def __init__(self, carrier: Carrier, sent: Callable[[Handle], None] = lambda _: None) -> None:
        self.carrier = carrier
        self.pieces = Pieces(carrier, sent)
        self._used: list[tuple[weakref.ref[object], list[tuple[int, _Stream]]]] = []
        self._left: list[tuple[int, _Stream]] = []
        self._lock = threading.RLock()

    def keep(self, owner: object, peer: int, stream: _Stream) -> None:
        """Keep the stream of an owner, to or from a rank of the world."""
        with self._lock:
            streams = next((streams for ref, streams in self._used if ref() is owner), None)
            if streams is None:
                self._sweep()
                streams = []
                self._used.append((weakref.ref(owner), streams))
            streams.append((peer, stream))

    def leave(self, owner: object) -> None:
        """The owner uses its streams no more. Messages that it has sent can still be received."""
        with self._lock:
            self._sweep(owner)

    def close(self, limit_s: float, gone: Callable[[int], bool]) -> None:
        """The carrier ends: wait until all sent messages have been received, but not longer than limit_s.

        gone: tells whether a rank of the world has gone; its messages are not waited for.
        """
        until = time.monotonic() + limit_s
        with self._lock:
            for ref, _ in list(self._used):
                self._sweep(ref())
            while any(isinstance(s, FarSendChannel) and not gone(peer) for peer, s in self._left):
                if time.monotonic() > until:
                    return
                time.sleep(_ASK_S)
                self.carrier.progress()
                self._sweep()

    def _sweep(self, leaving: object = None) -> None:
        """End the streams of owners that leave or have ended. Forget the streams that are over."""
        kept = []
        for ref, streams in self._used:
            owner = ref()
            if owner is None or owner is leaving:
                for _, stream in streams:
                    stream.end()
                self._left += streams
            else:
                kept.append((ref, streams))
        self._used = kept
        self._left = [(peer, stream) for peer, stream in self._left if not stream.catch_up()]


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

    def sender(self, owner: object, receiver: int) -> FarSendChannel:
        """The stream to a rank."""
        peer = self.world_ranks[receiver]
        stream = FarSendChannel(self.traffic.pieces, peer, self._tags(self.rank, receiver))
        self.traffic.keep(owner, peer, stream)
        return stream

    def receiver(self, owner: object, source: int) -> FarReceiveChannel:
        """The stream from a rank."""
        peer = self.world_ranks[source]
        stream = FarReceiveChannel(self.traffic.pieces, peer, self._tags(source, self.rank), source)
        self.traffic.keep(owner, peer, stream)
        return stream

    def _tags(self, source: int, receiver: int) -> tuple[int, int]:
        """The tags of pieces and of answers. They are in the upper half: collectives use the lower half."""
        quarter = self.traffic.carrier.tags // 4
        tag = 2 * quarter + digest("messages", self.gid, source, receiver) % quarter * 2
        return tag, tag + 1
