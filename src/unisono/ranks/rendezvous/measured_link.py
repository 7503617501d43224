"""The link between hosts, measured when they meet: a few bytes there and back, then two bursts. Milliseconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from ...base.errors import WaitTimeout
from ...base.link import Link

if TYPE_CHECKING:
    from ...engine.carrier import Carrier, Handle
    from ...schedule import Hosts
    from .stores import Store

_KEY = "link"
_TAG = 0
_ASK_S = 0.002
_PINGS = 8
_BURST = 512 << 10
"""Long enough to show a link's lasting rate: the first burst fills the buffers before the link, the second counts."""


def agreed_link(carrier: Carrier, hosts: Hosts, rank: int, store: Store, deadline: float) -> Link:
    """The link as the first ranks of the first two hosts measure it, rounded. All ranks get the same.

    Raises WaitTimeout if a rank takes no part by the deadline, and Lost.
    """
    first, second = hosts.members[0][0], hosts.members[1][0]
    if rank == first:
        found = _Line(carrier, second, rank, deadline).measure().rounded()
        store.set(_KEY, f"{found.latency_s!r} {found.bytes_per_s!r}")
        return found
    if rank == second:
        _Line(carrier, first, rank, deadline).answer()
    began = time.monotonic()
    while not store.check([_KEY]):
        if time.monotonic() > deadline:
            raise WaitTimeout("init()", time.monotonic() - began, (first,), rank, " It was to measure the link.")
        time.sleep(_ASK_S)
    latency_s, bytes_per_s = map(float, store.get(_KEY).split())
    return Link(latency_s, bytes_per_s)


class _Line:
    """One rank's end of the measurement."""

    def __init__(self, carrier: Carrier, peer: int, rank: int, deadline: float) -> None:
        self._carrier, self._peer, self._rank, self._deadline = carrier, peer, rank, deadline
        self._began = time.monotonic()

    def measure(self) -> Link:
        """Send, and wait each time for an answer of one byte."""
        ping_s = min(self._there_and_back(1) for _ in range(_PINGS))
        burst_s = [self._there_and_back(_BURST) for _ in range(2)][-1]
        return Link(ping_s / 2, _BURST / max(burst_s - ping_s, burst_s / 100))

    def answer(self) -> None:
        """The other end's part."""
        for nbytes in [1] * _PINGS + [_BURST] * 2:
            self._receive(nbytes)
            last = self._send(1)
        last.settle()

    def _there_and_back(self, nbytes: int) -> float:
        began = time.perf_counter()
        sent = self._send(nbytes)
        self._receive(1)
        took_s = time.perf_counter() - began
        sent.settle()
        return took_s

    def _send(self, nbytes: int) -> Handle:
        return self._carrier.isend(self._peer, _TAG, torch.ones(nbytes, dtype=torch.uint8, device="cpu"))

    def _receive(self, nbytes: int) -> None:
        """Wait by looking at the last byte, because only such a wait can end at a deadline."""
        data = torch.zeros(nbytes, dtype=torch.uint8, device="cpu")
        last = data[-1:].numpy()
        handle = self._carrier.irecv(self._peer, _TAG, data)
        while not last[0]:
            if time.monotonic() > self._deadline:
                waited_s = time.monotonic() - self._began
                raise WaitTimeout("init()", waited_s, (self._peer,), self._rank, " It measures the link.")
            self._carrier.progress()
            time.sleep(0)
        handle.settle()
