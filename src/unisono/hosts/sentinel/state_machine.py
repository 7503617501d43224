"""What a sentinel does, as a state machine without I/O: an event and the time in, messages to hosts and ranks out."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from ...base.records import DepartureKind
from . import BEAT_S
from .board_replicas import Copies
from .host_liveness import Liveness
from .regions import Regions
from .shared_facts import Gossip
from .wire import Ack, Body, Datagram, Fact, FactKind, Heartbeat, Look, News, Pages, Query, Sight, batches

_LONGEST_S = 2 * BEAT_S
"""The longest time between two steps. If it was longer, this process was stopped, and the others are not to blame."""
_HEARSAY_S = BEAT_S
"""How long a sentinel waits, after another host has reported a lost host, before it tells its ranks. The hosts behind a
cut link are found by several hosts. Only when all of them are known can a sentinel tell which side is the smaller one.
"""
_SETTLED_S = 5.0  # lost hosts no longer count for the majority this long after the ranks were told
_TELL_S, _LEAVE_S = 1.0, 2.0
"""A sentinel whose ranks have all left goes on until the other hosts have its last facts, by which they judge its ranks
from then on. Then it says goodbye, and ends when the goodbye has arrived. It waits at most `silent_s` + _TELL_S for the
facts, and at most `silent_s` + _LEAVE_S in all.
"""


class Tick(NamedTuple):
    """Time has passed."""


class Ended(NamedTuple):
    """The process of a rank of this host has ended. words: how, if the rank itself has not said so."""

    rank: int
    words: str


class Said(NamedTuple):
    """A rank of this host has sent this word, and what belongs to it; see `SentinelState`."""

    rank: int
    word: str
    rest: Sequence[Any] = ()


Event: TypeAlias = Tick | Datagram | Ended | Said


class SentinelState:
    """The sentinel of host number `me`.

    hosts: host -> its ranks.
    names: the hosts' names, for messages.
    silent_s: how long a host may be silent.
    sent: after each step, the messages to hosts, with their digests.
    told: after each step, the messages to ranks here; rank None: to all, also to ranks that connect later.
    done: the process may end.
    """

    def __init__(
        self,
        hosts: Sequence[Sequence[int]],
        me: int,
        names: Sequence[str],
        memory: Regions,
        now: float,
        silent_s: float,
    ) -> None:
        self._hosts, self._me, self._names, self._memory = hosts, me, names, memory
        self._silent_s = silent_s
        self._now, self._real = now, now
        at = {rank: host for host, ranks in enumerate(hosts) for rank in ranks}
        self._host_of = [at[rank] for rank in range(len(at))]
        self._gossip, self._live = Gossip(), Liveness(len(hosts), me, now, silent_s)
        self._copies = Copies(me, self._host_of, memory, self._send, self._tell)
        self._present = set(hosts[me])
        self._beat_at = now
        self._tell_lost_at: float | None = None
        self._told_lost: dict[int, float] = {}  # lost host -> when the ranks were told
        self._nagged: dict[int, float] = {}  # lost host that still sends -> when it was last told that it is lost
        self._alone_since: float | None = None
        self.cut_off = ""
        self.done = False
        self.sent: list[tuple[int, int, Body]] = []
        self.told: list[tuple[int | None, list[object]]] = []

    def step(self, event: Event, real: float) -> None:
        """Take in one event at this time. Raises ValueError if a rank has said what makes no sense."""
        self._now += min(max(0.0, real - self._real), _LONGEST_S)
        self._real = real
        match event:
            case Datagram():
                self._heard(event)
            case Ended(rank, words) if rank in self._present:
                self._copies.push(rank, None, self._now)
                self._gone(rank, DepartureKind.DIED, words)
            case Said(rank, word, rest):
                self._serve(rank, word, rest)
            case Tick():
                self._tick()
        self._end_when_alone()

    @property
    def remembered(self) -> object:
        """Differs once that has changed which a process needs to go on in place of this one."""
        return len(self._gossip.facts), self._copies.changes

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_memory": None}

    def take_over(self, memory: Regions, first: int) -> None:
        """Go on in place of a process that may have sent more since this state was written. What was about to be sent
        then is sent again as if it was lost. first: see `Copies.take_over`.
        """
        self._memory, self.sent = memory, []
        self._copies.take_over(memory, first)
        for rank in self._hosts[self._me]:
            self._copies.push(rank, None, self._now)

    def _serve(self, rank: int, word: str, rest: Sequence[Any]) -> None:
        """Do what a rank of this host has said.

        register: it uses a group. The number of the group, the start of its region, its members as ranks of the world.
        forget: it uses a group no more.
        ask: it wants fresh copies. The number of the group, and of the ticket.
        look: it wants to know what this rank of another host does. The ticket comes back with the answer.
        wake: it has news for all hosts, on its board of a group.
        lost: it can exchange no messages with this rank of another host any more, and does not know why.
        close: it needs its sentinel no longer.
        """
        match word, *rest:
            case "register", int(gid), int(start), [*members] if all(isinstance(rank, int) for rank in members):
                self._copies.register(rank, gid, start, members)
            case "forget", int(gid):
                self._copies.push(rank, gid, self._now)
                self._copies.forget(rank, gid)
            case "ask", int(gid), int(ticket):
                self._copies.ask(rank, gid, ticket, self._now)
            case "look", int(other), int(ticket) if other < len(self._host_of):
                self._send(self._host_of[other], Look(other, rank, ticket))
            case "wake", int(gid):
                self._copies.push(rank, gid, self._now)
            case "lost", int(other) if other < len(self._host_of):
                first, last = sorted((self._me, self._host_of[other]))
                if {first, last} <= {*self._live.living}:
                    self._learn(
                        [Fact(FactKind.LOST, last, words=f"exchanges no messages with host {self._names[first]}")]
                    )
            case ("close",):
                if rank in self._present:
                    self._copies.push(rank, None, self._now)
                    self._copies.forget_all(rank)
                    self._gone(rank, DepartureKind.LEFT, "left the group")
            case _:
                raise ValueError("not a message")

    def wake_in(self, real: float) -> float:
        """The seconds from this time until a Tick is due."""
        times = [self._beat_at, self._live.wake_at(self._now), self._gossip.wake_at(), self._copies.wake_at()]
        times += [] if self._tell_lost_at is None else [self._tell_lost_at]
        return max(0.0, min(times) - self._now - (real - self._real))

    def _send(self, host: int, body: Body) -> None:
        self.sent.append((host, self._gossip.digest, body))

    def _tell(self, rank: int | None, value: list[object]) -> None:
        self.told.append((rank, value))

    def _gone(self, rank: int, how: DepartureKind, words: str) -> None:
        """A rank of this host has gone; its own words count, if it has written some."""
        said = self._memory.departure(rank)
        # A process lives on when its function returns: so a return says nothing about the end of the process.
        over = DepartureKind.RETURNED if how is DepartureKind.DIED else None
        if said is not None and said.how not in (DepartureKind.ABORTED, over):
            how, words = said
        self._learn([Fact.gone(rank, how, words)])

    def _heard(self, datagram: Datagram) -> None:
        sender, its_digest, body = datagram
        if (FactKind.LOST, sender) in self._gossip.facts:
            if self._now - self._nagged.get(sender, 0.0) >= BEAT_S:  # tell it that it is lost, and nothing else
                self._nagged[sender] = self._now
                self._send_news([sender])
            return
        if sender in self._live.living:
            self._live.hear(sender, self._now)
            self._take(sender, body)
        if not self._gossip.confirms(sender, its_digest) and not self._gossip.waits_for(sender):
            self._send_news([sender])
            if sender in self._live.living:
                self._gossip.sent([sender], self._now)
        elif isinstance(body, News):
            self._send(sender, self._beat())

    def _take(self, sender: int, body: Body) -> None:
        match body:
            case Heartbeat(asks, hears):
                self._live.believe(sender, hears, self._now)
                if asks:
                    self._send(sender, self._beat())
            case News(facts):
                self._learn(facts, of=sender)
            case Query():
                self._copies.question(sender, body)
            case Pages():
                self._copies.pages(sender, body, self._now)
            case Ack():
                self._copies.ack(sender, body, self._now)
            case Look(rank, asker, ticket) if rank in self._present:
                self._send(sender, Sight(asker, ticket, self._memory.sight(rank)))
            case Sight(asker, ticket, text):
                self._tell(asker, ["sight", ticket, text])

    def _learn(self, facts: Sequence[Fact], of: int | None = None) -> None:
        """Take in facts, and make them known: all hosts hear of facts that this one has found."""
        new = self._gossip.add(fact for fact in facts if self._makes_sense(fact))
        if not new:
            return
        for kind, subject, how, words in new:
            if kind is FactKind.GONE:
                self._copies.rank_gone(subject)
                self._present.discard(subject)
                self._depart(subject, how, words)
            elif kind is FactKind.LEFT and subject != self._me:
                for rank in self._hosts[subject]:
                    self._memory.depart(rank, DepartureKind.LEFT, "left the group")
                self._copies.drop_host(subject, self._now)
            elif kind is FactKind.LOST:
                self._tell_lost_at = self._now + (0.0 if of is None else _HEARSAY_S)
        out = [subject for kind, subject, _, _ in new if kind is not FactKind.GONE]
        self._live.remove(out, self._now)
        for host in out:
            self._gossip.drop(host)
        if of is None:
            others = [host for host in self._live.living if host != self._me]
            self._send_news(others)
            self._gossip.sent(others, self._now)
        else:
            for host in self._live.told:
                self._send(host, self._beat())

    def _makes_sense(self, fact: Fact) -> bool:
        ranks = sum(map(len, self._hosts))
        if fact.kind is FactKind.GONE:
            return fact.subject < ranks and fact.how in DepartureKind.__members__.values()
        return fact.subject < len(self._hosts)

    def _depart(self, rank: int, how: int, words: str) -> None:
        self._memory.depart(rank, how, words)
        self._tell(None, ["gone", rank, how, words])

    def _send_news(self, hosts: Sequence[int]) -> None:
        for batch in batches(self._gossip.facts.values()):
            for host in hosts:
                self._send(host, News(batch))

    def _beat(self) -> Heartbeat:
        return Heartbeat(hears=self._live.hears(self._now))

    def _tick(self) -> None:
        now = self._now
        for rank in list(self._present):  # the parent of a process that runs another program now says so on its board
            if (said := self._memory.departure(rank)) and said.how is DepartureKind.DIED:
                self._gone(rank, *said)
        if self._live.ask_all(now):
            self._beat_at = now
        if lost := self._live.lost(now):
            silent = f"has been silent for {self._silent_s:g} s"
            self._learn([Fact(FactKind.LOST, host, words=silent) for host in lost])
        if now >= self._beat_at:
            self._beat_at = now + self._live.beat_s
            for host in self._live.told:
                self._send(host, self._beat())
            for host in self._live.asked:
                self._send(host, self._beat()._replace(asks=True))
        if late := self._gossip.due(now):
            self._send_news(late)
            self._gossip.sent(late, now)
        self._copies.tick(now)
        if self._tell_lost_at is not None and now >= self._tell_lost_at:
            self._tell_lost_at = None
            self._tell_lost()

    def _tell_lost(self) -> None:
        """Tell the ranks of this host which hosts are lost, and whether this host is cut off."""
        lost = self._gossip.subjects(FactKind.LOST)
        counts = set(range(len(self._hosts))) - self._gossip.subjects(FactKind.LEFT)
        counts -= {host for host, when in self._told_lost.items() if self._now - when > _SETTLED_S}
        there = counts - lost
        others = ", ".join(self._names[host] for host in sorted(counts - there - {self._me}))
        is_half = 2 * len(there) == len(counts)  # then the half with the first host goes on
        minority = 2 * len(there) < len(counts) or (is_half and min(counts) not in there)
        if not self.cut_off and self._me in lost:
            words = self._gossip.facts[FactKind.LOST, self._me].words
            self.cut_off = f"this host {words}, and the others go on without it"
        elif not self.cut_off and minority:
            rest = (
                f"host {self._names[min(counts)]}, whose half of the hosts goes on, if it can"
                if is_half
                else "the majority"
            )
            self.cut_off = f"this host is cut off from {rest} (it does not hear {others})"
        if self.cut_off:
            self._tell(None, ["cut", self.cut_off])
        if self._me in lost:  # the others do not hear this host any more, even if it hears them
            for host in sorted(counts - lost):
                self._lose(host, f"is on host {self._names[host]} ({_ranks(self._hosts[host])})")
        for host in sorted(lost - set(self._told_lost) - {self._me}):
            self._told_lost[host] = self._now
            where, words = (
                f"host {self._names[host]} ({_ranks(self._hosts[host])})",
                self._gossip.facts[FactKind.LOST, host].words,
            )
            self._lose(host, f"is on {where}, which {words}")

    def _lose(self, host: int, words: str) -> None:
        """That host is lost, or this host is cut off from it: its ranks count as gone. words: how they have gone."""
        for rank in set(self._hosts[host]) - self._gossip.subjects(FactKind.GONE):
            self._depart(rank, DepartureKind.DIED, words)
        self._copies.drop_host(host, self._now)

    def _end_when_alone(self) -> None:
        """Leave once all ranks of this host have, and the other hosts have all facts and pages."""
        if self._present:
            return
        if self._alone_since is None:
            self._alone_since = self._now
        late_s = self._now - self._alone_since - self._silent_s
        has_left = (FactKind.LEFT, self._me) in self._gossip.facts
        if not has_left and ((self._copies.settled and self._gossip.settled) or late_s > _TELL_S):
            self._learn([Fact(FactKind.LEFT, self._me)])
        elif has_left and (self._gossip.settled or late_s > _LEAVE_S):
            self.done = True


def _ranks(ranks: Sequence[int]) -> str:
    """[2, 3] -> `ranks 2-3`, [1] -> `rank 1`, [0, 2] -> `ranks 0, 2`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    said = ", ".join("-".join(map(str, run)) for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {said}"
