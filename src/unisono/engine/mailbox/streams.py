"""The streams of all groups of a process over one carrier, and which of them belong to whom."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...base.records import digest
from ..carrier import Carrier
from .far_channel import Frames
from .far_ends import FarReceiveChannel, FarSendChannel

_ASK_S = 0.0005
_Stream: TypeAlias = FarReceiveChannel | FarSendChannel


class CarrierStreams:
    """Keeps streams for as long as the carrier may touch their pieces, whatever becomes of their groups."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.pieces = Frames(carrier)
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
        """The owner uses its streams no more. What it has sent can still be received."""
        with self._lock:
            self._sweep(owner)

    def close(self, limit_s: float, gone: Callable[[int], bool]) -> None:
        """The carrier ends: wait until what has been sent has been received, but not for ranks, of the world, that are
        gone, and not for longer than limit_s.
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
        """End the streams of owners that are not there any more, or leave; forget those that are over."""
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

    rank: this one's, in the group. ranks: theirs. gid: the group's number, the same on all members.
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
        """Of the pieces and of the answers; in the upper half, since the lower one is that of collectives."""
        quarter = self.traffic.carrier.tags // 4
        tag = 2 * quarter + digest("messages", self.gid, source, receiver) % quarter * 2
        return tag, tag + 1
