"""Facts that all hosts come to know: which ranks have ended, which hosts are lost or have left.

Facts are only ever added, so hosts may hear them in any order and as often as they like. Every datagram says, in a
digest, which facts its sender knows. Who hears a digest that differs from its own sends what it knows; so two hosts
that hear each other end with the same facts, and one datagram that brings the same digest confirms all that was sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...base.records import digest
from .wire import Fact, FactKind

_AGAIN_S, _MOST_S = 0.04, 0.32
"""When facts are sent again to a host that has not confirmed them: first, and at most; twice as late each time."""


class Gossip:
    """What one host knows, and of which hosts it has to make sure that they know it."""

    def __init__(self) -> None:
        self.facts: dict[tuple[FactKind, int], Fact] = {}
        self.digest = 0
        self._unsure: dict[int, tuple[float, float]] = {}
        """Hosts that have not confirmed: when to send again, and how long to wait then."""

    def add(self, facts: Iterable[Fact]) -> list[Fact]:
        """Learn facts; returns those that are new. Of each rank and host, the first stays: it has one source."""
        new = {key: fact for fact in facts if (key := (fact.kind, fact.subject)) not in self.facts}
        self.facts |= new
        if new:
            self.digest = digest(sorted(self.facts.values()))
        return list(new.values())

    def subjects(self, kind: FactKind) -> set[int]:
        """The ranks or hosts of which this is known."""
        return {subject for known, subject in self.facts if known is kind}

    def sent(self, hosts: Iterable[int], now: float) -> None:
        """These hosts have been sent all facts, and have to confirm them."""
        for host in hosts:
            _, wait_s = self._unsure.get(host, (0.0, _AGAIN_S / 2))
            wait_s = min(2 * wait_s, _MOST_S)
            self._unsure[host] = now + wait_s, wait_s

    def confirms(self, host: int, its_digest: int) -> bool:
        """Does a host know the same facts? Then nothing is sent again to it."""
        if its_digest == self.digest:
            self._unsure.pop(host, None)
        return its_digest == self.digest

    def drop(self, host: int) -> None:
        """Nothing more is told to this host."""
        self._unsure.pop(host, None)

    @property
    def settled(self) -> bool:
        """Have all hosts confirmed what they were sent?"""
        return not self._unsure

    def waits_for(self, host: int) -> bool:
        """Has the host been sent facts that it has not confirmed?"""
        return host in self._unsure

    def due(self, now: float) -> list[int]:
        """The hosts to which facts are to be sent again now."""
        return [host for host, (when, _) in self._unsure.items() if when <= now]

    def wake_at(self) -> float:
        """When something is due next."""
        return min((when for when, _ in self._unsure.values()), default=float("inf"))
