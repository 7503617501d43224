"""Play rounds with a clock for every rank and every link: each goes on when what it needs is there.

A rank begins a round when it has all that earlier rounds bring it, and has sent all that it sends there. What it sends
to other hosts leaves one after the other, and what is long waits until its receiver has come to the round. What comes
from its own host a rank fetches itself. Messages that are on a link at the same time share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .kernel import COLUMNS, SINCE, UNTIL, play_rounds
from .networks.network import Links, Network, Numbers
from .table_messages import Messages

_EXACT, _WINDOW = 96, 24
"""Of a round that is repeated more often than this, so many are played, or fewer if all clocks go on alike before; the
last say what each further one takes.
"""

_ALIKE = 1e-9

_LITTLE = 2000
"""So few messages are played sooner than Numba is imported."""


_AT_ONCE = 1 << 14


class Routed(NamedTuple):
    """Messages with their ways: do they go far, their latency, and for each a row of links."""

    messages: Messages
    far: np.ndarray
    latency: Numbers
    links: Links


class Played(NamedTuple):
    """When each rank is ready, of that how much is latency, transfers and sums (columns), how long links are busy."""

    ready: Numbers
    parts: Numbers
    busy: Numbers

    @property
    def last(self) -> int:
        """The rank that is ready last."""
        return int(self.ready.argmax())


def routed(sections: Sequence[Messages], network: Network) -> list[Routed]:
    """Look up the ways of messages."""
    return [_routed(some, network) for some in sections]


def play(
    sections: Sequence[Routed], network: Network, nbytes: float, late: Mapping[int, float] | None = None
) -> Played:
    """Play a table. nbytes: of its vector. late: for ranks that begin later, by how many seconds."""
    state, hardware = _State(network), network.hardware
    much = sum(len(part.messages.src) * min(part.messages.times, _EXACT) for part in sections) > _LITTLE
    run = _compiled() if much else play_rounds
    for rank, seconds in (late or {}).items():
        state.ready[rank] = seconds
    for part in sections:
        sent = part.messages
        costs = nbytes * sent.weight, hardware.eager_bytes * sent.weight, hardware.message_s * sent.weight
        arrays = (
            (sent.starts, sent.src, sent.dst, sent.share, sent.added),
            (part.far, part.latency, part.links),
            (*costs, 1 / hardware.combine_bytes_per_s),
            (state.ready, state.parts),
            state.links,
            state.busy,
            state.room(int(np.diff(sent.starts).max(initial=0))),
        )
        times = round(sent.times)
        if times <= _EXACT or len(sent.starts) > 2:
            run(times, *arrays)
            continue
        played, steady = 0, False
        while not steady and played < _EXACT:
            before, begin = state.copy(), state.ready.copy()
            run(_WINDOW, *arrays)
            played, took = played + _WINDOW, state.ready - begin
            steady = bool(np.ptp(took) <= _ALIKE * took.max())
        state.go_on(before, (times - played) / _WINDOW)
    return Played(state.ready, state.parts, state.busy[:, 1])


class _State:
    """The clocks."""

    def __init__(self, network: Network) -> None:
        self.ready, self.parts = np.zeros(network.ranks), np.zeros((network.ranks, 3))
        self.links = np.zeros((len(network.rates), COLUMNS))
        self.busy = np.stack([1 / network.rates, np.zeros(len(network.rates))], axis=1)
        self._scratch = tuple(np.zeros(network.ranks) for _ in range(3)), np.zeros((network.ranks, 3))

    def room(self, most: int) -> tuple[Any, ...]:
        """Scratch for a round of so many messages."""
        return (tuple(np.zeros(most) for _ in range(3)), *self._scratch)

    def copy(self) -> tuple[float, Numbers, Numbers]:
        """What shows how fast the clocks go: that of the last rank, its parts, and what links have done."""
        last = int(self.ready.argmax())
        return float(self.ready[last]), self.parts[last].copy(), self.busy[:, 1].copy()

    def go_on(self, before: tuple[float, Numbers, Numbers], factor: float) -> None:
        """Let all go on as from `before` to now, so many times."""
        now = self.copy()
        more = (now[0] - before[0]) * factor
        self.ready += more
        self.links[:, [SINCE, UNTIL]] += more
        change = np.maximum(now[1] - before[1], 0.0)
        self.parts += change / max(change.sum(), 1e-30) * more
        self.busy[:, 1] += (now[2] - before[2]) * factor


def _routed(sent: Messages, network: Network) -> Routed:
    """The ways of one section, looked up for so many messages at a time that all about them stays in the cache."""
    count, far = len(sent.src), network.far(sent.src, sent.dst)
    latency, links = np.empty(count), np.zeros((count, 0), np.int32)
    for begin in range(0, count, _AT_ONCE):
        some = slice(begin, begin + _AT_ONCE)
        route = network.route(sent.src[some], sent.dst[some])
        latency[some] = network.latency(sent.src[some], sent.dst[some], route)
        used = route[route.any(axis=1)]
        if len(used) > links.shape[1]:
            links = np.pad(links, ((0, 0), (0, len(used) - links.shape[1])))
        links[some, : len(used)] = used.T
    return Routed(sent, far, latency, links)


@cache
def _compiled() -> Callable[..., None]:
    """The loop as machine code, which Numba keeps on disk where it may. Numba is imported here: elsewhere, none."""
    from numba import njit

    try:
        loop: Callable[..., None] = njit(cache=True, error_model="numpy")(play_rounds)
    except RuntimeError:  # there is no folder to keep it in
        loop = njit(error_model="numpy")(play_rounds)
    return loop
