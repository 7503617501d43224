"""Play rounds with a clock for every rank and every link.

A rank begins a round when it has received and sent all messages of its earlier rounds. Its messages to other hosts
leave one after the other; a long one waits until its receiver has come to the round. Messages from its own host a rank
fetches itself. Messages that are on a link at the same time share it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .networks import Links, Network, Numbers
from .table_messages import Messages

SINCE, UNTIL, WORK, LOAD, COUNT, TOTAL, FIRST, LAST = range(8)
COLUMNS = 8
"""The columns of a link: begin and end of its last use, and the work in it; then for this round the work, the number of
messages, the sum of their begins, the first begin, the last end. Together they are as long as a cache line.
"""


def play_rounds(times: int, sent: Any, ways: Any, costs: Any, ranks: Any, links: Any, busy: Any, room: Any) -> None:
    """Play these rounds `times` times.

    sent: starts, src, dst, share, added; see `Messages`.
    ways: for each message, does it go to another host, its latency, and its links (0: none). Within a host it has one.
    costs: bytes of the vector; the longest message that does not wait for its receiver; seconds that a message of a
    rank to another host waits for the one before it; seconds per byte combined.
    ranks: when each rank is ready, and how much of this time is latency, transfers and sums.
    links: per link the columns above, of which the last five are scratch.
    busy: per link seconds per byte, and all its work.
    room: scratch for messages and ranks. Scratch is zero before and after. If 0 has a meaning, it holds the value + 1.
    """
    starts, src, dst, share, added = sent
    far, latency, route = ways
    nbytes, eager, message_s, combine_s = costs
    ready, parts = ranks
    of_message, of_rank, of_parts = room
    go, out, by = of_message
    came, sums, then = of_rank
    width = route.shape[1]
    for number in range(times * (len(starts) - 1)):
        begin = starts[number % (len(starts) - 1)]
        end = starts[number % (len(starts) - 1) + 1]
        # How much work there is on each link, and from when on.
        for m in range(begin, end):
            a, b, i = src[m], dst[m], m - begin
            if m == begin or a != src[m - 1]:
                waits = 0.0
            go[i] = ready[a] + (waits if far[m] else latency[m])
            if far[m]:
                waits += message_s
            by[i] = a
            if ready[b] > go[i] and (not far[m] or share[m] * nbytes > eager):
                go[i] = ready[b]
                by[i] = b
            for h in range(width if far[m] else 1):
                k = route[m, h]
                if k > 0:
                    own = share[m] * nbytes * busy[k, 0]
                    free = min(links[k, UNTIL], links[k, SINCE] + links[k, WORK])
                    # A message of a later round may pass before one of an earlier round that comes late.
                    start = free if go[i] < free and go[i] + own > links[k, SINCE] else go[i]
                    links[k, LOAD] += own
                    links[k, COUNT] += 1.0
                    links[k, TOTAL] += start
                    links[k, LAST] = max(links[k, LAST], start) + own
                    if links[k, FIRST] == 0.0 or start + 1.0 < links[k, FIRST]:
                        links[k, FIRST] = start + 1.0
        # When each message has left, and what each rank receives.
        for m in range(begin, end):
            b, i = dst[m], m - begin
            out[i] = go[i]
            for h in range(width if far[m] else 1):
                k = route[m, h]
                if k > 0:
                    own = share[m] * nbytes * busy[k, 0]
                    free = min(links[k, UNTIL], links[k, SINCE] + links[k, WORK])
                    start = free if go[i] < free and go[i] + own > links[k, SINCE] else go[i]
                    # Of two messages that share a link, each is alone on it while the other is not there.
                    took = max(links[k, LOAD] - abs(links[k, COUNT] * start - links[k, TOTAL]), own)
                    out[i] = max(out[i], min(start + took, links[k, LAST]))
            sums[b] += added[m] * nbytes * combine_s
            at = max(out[i] + (latency[m] if far[m] else 0.0), ready[b]) + 1.0
            if came[b] == 0.0 or at < came[b]:
                came[b] = at
        # When each rank has received and combined all messages, and has sent all messages to other hosts.
        for m in range(begin, end):
            a, b, i = src[m], dst[m], m - begin
            starter = int(by[i])
            at = out[i] + (latency[m] if far[m] else 0.0)
            own = added[m] * nbytes * combine_s
            done = max(max(at, ready[b]) + own, came[b] - 1.0 + sums[b])
            if done > then[b]:
                then[b] = done
                origin = b if ready[b] > at else starter
                wait = 0.0 if ready[b] > at else go[i] - ready[starter] + at - out[i]
                moves = 0.0 if ready[b] > at else out[i] - go[i]
                of_parts[b, 0] = parts[origin, 0] + wait
                of_parts[b, 1] = parts[origin, 1] + moves
                of_parts[b, 2] = parts[origin, 2] + done - max(at, ready[b])
            if far[m] and out[i] > then[a]:
                then[a] = out[i]
                of_parts[a, 0] = parts[starter, 0] + go[i] - ready[starter]
                of_parts[a, 1] = parts[starter, 1] + out[i] - go[i]
                of_parts[a, 2] = parts[starter, 2]
        for m in range(begin, end):
            for k in (src[m], dst[m]):
                if then[k] > ready[k]:
                    ready[k] = then[k]
                    parts[k] = of_parts[k]
                came[k] = 0.0
                sums[k] = 0.0
                then[k] = 0.0
            for h in range(width if far[m] else 1):
                k = route[m, h]
                if k > 0 and links[k, COUNT] > 0.0:
                    links[k, WORK] = (
                        max(links[k, WORK] - max(links[k, FIRST] - 1.0 - links[k, SINCE], 0.0), 0.0) + links[k, LOAD]
                    )
                    busy[k, 1] += links[k, LOAD]
                    links[k, SINCE] = links[k, FIRST] - 1.0
                    links[k, UNTIL] = max(links[k, UNTIL], links[k, LAST])
                    links[k, LOAD] = 0.0
                    links[k, COUNT] = 0.0
                    links[k, TOTAL] = 0.0
                    links[k, FIRST] = 0.0
                    links[k, LAST] = 0.0


_EXACT, _WINDOW = 96, 24
"""Up to _EXACT equal rounds are all played. Of more rounds, windows of _WINDOW are played until all clocks go on at one
rate, at most _EXACT rounds. The last window says what each further round takes.
"""

_ALIKE = 1e-9

_LITTLE = 2000  # up to this number of messages, Python plays them in less time than the import of Numba takes

_AT_ONCE = 1 << 14


class Routed(NamedTuple):
    """Messages with their ways.

    far: does the message go to another host?
    latency: in seconds.
    links: for each message a row of links.
    """

    messages: Messages
    far: np.ndarray
    latency: Numbers
    links: Links


class Played(NamedTuple):
    """A table that was played.

    ready: when each rank is ready.
    parts: how much of this time is latency, transfers and sums (columns).
    busy: how long each link is used.
    """

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
        """Scratch for rounds of up to `most` messages."""
        return (tuple(np.zeros(most) for _ in range(3)), *self._scratch)

    def copy(self) -> tuple[float, Numbers, Numbers]:
        """The clock of the rank that is ready last, its parts, and the work of all links."""
        last = int(self.ready.argmax())
        return float(self.ready[last]), self.parts[last].copy(), self.busy[:, 1].copy()

    def go_on(self, before: tuple[float, Numbers, Numbers], factor: float) -> None:
        """Let all clocks go on as from `before` to now, `factor` times."""
        now = self.copy()
        more = (now[0] - before[0]) * factor
        self.ready += more
        self.links[:, [SINCE, UNTIL]] += more
        change = np.maximum(now[1] - before[1], 0.0)
        self.parts += change / max(change.sum(), 1e-30) * more
        self.busy[:, 1] += (now[2] - before[2]) * factor


def _routed(sent: Messages, network: Network) -> Routed:
    """The ways of one section, looked up for few messages at a time, so that their data stays in the cache."""
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
    """The loop as machine code, which Numba keeps on disk if it can. Only a long simulation imports Numba."""
    from numba import njit

    try:
        loop: Callable[..., None] = njit(cache=True, error_model="numpy")(play_rounds)
    except RuntimeError:  # there is no folder to keep it in
        loop = njit(error_model="numpy")(play_rounds)
    return loop
