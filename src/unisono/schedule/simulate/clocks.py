"""Play rounds with a clock for every rank and every link.

A rank begins a round when it has received and sent all messages of its earlier rounds. Its messages to other hosts
leave one after the other; a long one waits until its receiver has come to the round. Messages from its own host a rank
fetches itself. Messages that are on a link at the same time share it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .network import Ints, Links, Network, Numbers
from .table_messages import Messages

_EXACT, _WINDOW = 96, 24
"""Up to _EXACT equal rounds are all played. Of more rounds, windows of _WINDOW are played until all clocks go on at one
rate, at most _EXACT rounds. The last window says what each further round takes.
"""

_ALIKE = 1e-9


class Played(NamedTuple):
    """The result of playing a table.

    Attributes:
        ready: When each rank is ready.
        parts: The parts of this time: latency, transfers and sums (columns).
        busy: How long each link is used.
    """

    ready: Numbers
    parts: Numbers
    busy: Numbers

    @property
    def last(self) -> int:
        """The rank that is ready last."""
        return int(self.ready.argmax())


def play(
    sections: Sequence[Messages], network: Network, nbytes: float, late: Mapping[int, float] | None = None
) -> Played:
    """Play a table on a network.

    Args:
        nbytes: The size of its vector.
        late: For late ranks, by how many seconds they begin later.
    """
    clocks = Clocks(network)
    for rank, seconds in (late or {}).items():
        clocks.ready[rank] = seconds
    for sent in sections:
        for number in range(len(sent.starts) - 1):
            clocks.repeat(_round(sent, number, network, nbytes), round(sent.times))
    return Played(clocks.ready, clocks.parts, clocks.busy)


class Round(NamedTuple):
    """The messages of a round, by sender, and how they use links.

    far: does the message go to another host?
    waits: it waits for its receiver, because it is long or within a host.
    leaves: seconds from the begin of the sender's round until the message leaves.
    arrives: seconds from when its last byte has left until it is there.
    sums: seconds for which its receiver combines it.
    links: the links that are used. uses: where each begins in the next three, which have its messages in their order.
    message: its index. place: the index of the link in `links`. own: seconds for which the message uses the link.
    """

    src: Ints
    dst: Ints
    far: npt.NDArray[np.bool_]
    waits: npt.NDArray[np.bool_]
    leaves: Numbers
    arrives: Numbers
    sums: Numbers
    links: Links
    uses: Ints
    message: Ints
    place: Ints
    own: Numbers


def _round(sent: Messages, number: int, network: Network, nbytes: float) -> Round:
    some, hardware = slice(*sent.starts[number : number + 2]), network.hardware
    src, dst, share = sent.src[some], sent.dst[some], sent.share[some] * nbytes * sent.weight
    far, route = network.far(src, dst), network.route(src, dst)
    latency = network.latency(src, dst)
    ahead: Ints = np.cumsum(far) - far  # messages to other hosts that leave before, of any rank, then of this one
    ahead -= ahead[np.searchsorted(src, src)]
    leaves = np.where(far, ahead * hardware.message_s * sent.weight, latency)
    waits = ~far | (share > hardware.eager_bytes * sent.weight)
    sums = sent.added[some] * nbytes * sent.weight / hardware.combine_bytes_per_s
    hop, message = np.nonzero(route)
    link = route[hop, message]
    order = np.argsort(link, kind="stable")  # fast, because messages are in the order of their senders
    link, message = link[order], message[order]
    uses = np.flatnonzero(np.diff(link, prepend=-1))
    links, place = link[uses], np.repeat(np.arange(len(uses)), np.diff(uses, append=len(link)))
    own = share[message] / network.rates[link]
    return Round(src, dst, far, waits, leaves, latency * far, sums, links, uses, message, place, own)


class Clocks:
    """The clocks of all ranks and links.

    ready, parts, busy: as in `Played`.
    since, until, work: of each link the begin and the end of its last use, and the seconds of work in it.
    """

    def __init__(self, network: Network) -> None:
        self.ready, self.parts = np.zeros(network.ranks), np.zeros((network.ranks, 3))
        self.since, self.until, self.work, self.busy = np.zeros((4, len(network.rates)))

    def repeat(self, now: Round, times: int) -> None:
        """Play a round so many times."""
        if times <= _EXACT:
            for _ in range(times):
                self.play(now)
            return
        played, steady = 0, False
        while not steady and played < _EXACT:
            before, begin = self._latest(), self.ready
            self.repeat(now, _WINDOW)
            played, took = played + _WINDOW, self.ready - begin
            steady = bool(np.ptp(took) <= _ALIKE * took.max())
        self._go_on(before, (times - played) / _WINDOW)

    def play(self, now: Round) -> None:
        """Play a round once."""
        ready, src, dst, far = self.ready, now.src, now.dst, now.far
        go = ready[src] + now.leaves
        held = now.waits & (ready[dst] > go)
        go, starter = np.where(held, ready[dst], go), np.where(held, dst, src)
        out = np.maximum(go, self._pass_links(now, go))
        at = out + now.arrives
        begin = np.maximum(at, ready[dst])
        came, sums = np.full(len(ready), np.inf), np.bincount(dst, now.sums, len(ready))
        np.minimum.at(came, dst, begin)
        done = np.maximum(begin + now.sums, (came + sums)[dst])
        # What decides when a rank is ready: the message that it has combined last, or the last that has left it.
        busy, waited, moved = ready[dst] > at, go - ready[starter], out - go
        rank = np.stack([dst, src], axis=1).ravel()
        time = np.stack([done, out * far], axis=1).ravel()
        origin = np.stack([np.where(busy, dst, starter), starter], axis=1).ravel()
        received = (waited + now.arrives) * ~busy, moved * ~busy, done - begin
        more = np.array([received, (waited, moved, 0 * moved)]).transpose(2, 0, 1).reshape(-1, 3)
        then = np.zeros(len(ready))
        np.maximum.at(then, rank, time)
        decides = np.flatnonzero((time == then[rank]) & (time > ready[rank]))[::-1]
        parts = self.parts.copy()
        parts[rank[decides]] = self.parts[origin[decides]] + more[decides]
        self.ready, self.parts = np.maximum(ready, then), parts

    def _pass_links(self, now: Round, go: Numbers) -> Numbers:
        """When the last byte of each message has left the last of its links. go: when the messages begin."""
        links, uses, place, own, last = now.links, now.uses, now.place, now.own, np.zeros(len(go))
        if not len(links):
            return last
        since, begin = self.since[links], go[now.message]
        free = np.minimum(self.until[links], since + self.work[links])[place]
        # A message of a later round may pass before one of an earlier round that comes late.
        start = np.where((begin < free) & (begin + own > since[place]), free, begin)
        load, total = np.add.reduceat(own, uses), np.add.reduceat(start, uses)
        count, first = np.diff(uses, append=len(own)), np.minimum.reduceat(start, uses)
        passed = np.cumsum(own, dtype=np.longdouble)  # links have far less work than all have together
        behind = passed[uses + count - 1][place] - passed + own  # the work of this message and later ones
        end = np.maximum.reduceat(start + behind, uses).astype(np.float64)
        # Of two messages that share a link, each is alone on it while the other is not there.
        took = np.maximum(load[place] - np.abs(count[place] * start - total[place]), own)
        np.maximum.at(last, now.message, np.minimum(start + took, end[place]))
        self.work[links] = np.maximum(self.work[links] - np.maximum(first - since, 0.0), 0.0) + load
        self.busy[links] += load
        self.since[links], self.until[links] = first, np.maximum(self.until[links], end)
        return last

    def _latest(self) -> tuple[float, Numbers, Numbers]:
        """The clock of the rank that is ready last, its parts, and the work of all links."""
        last = int(self.ready.argmax())
        return float(self.ready[last]), self.parts[last].copy(), self.busy.copy()

    def _go_on(self, before: tuple[float, Numbers, Numbers], factor: float) -> None:
        """Let all clocks go on as from `before` to now, `factor` times."""
        now = self._latest()
        more = (now[0] - before[0]) * factor
        self.ready = self.ready + more
        self.since += more
        self.until += more
        change = np.maximum(now[1] - before[1], 0.0)
        self.parts += change / max(change.sum(), 1e-30) * more
        self.busy += (now[2] - before[2]) * factor
