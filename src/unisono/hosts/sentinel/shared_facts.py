"""Facts that all hosts come to know: which ranks have ended, which hosts are lost or have left.

Facts are only ever added, so hosts may hear them in any order, and more than once. Two facts of one kind about one rank
or host count as one, whatever their words. Every datagram has a digest of the facts that its sender knows. A host that
hears another digest than its own sends its facts. So two hosts that hear each other end with the same facts. One
datagram with the same digest confirms all facts that were sent.
"""

from collections.abc import Iterable

from ...base.records import digest
from .wire import Fact, FactKind

_AGAIN_S, _MOST_S = 0.04, 0.32
"""The first and the longest delay before facts are sent again to a host that has not confirmed them; it doubles."""


class Gossip:
    """The facts that one host knows, and the hosts that have not confirmed them yet."""

    def __init__(self) -> None:
        self.facts: dict[tuple[FactKind, int], Fact] = {}
        self.digest = 0
        self._unsure: dict[int, tuple[float, float]] = {}
        """Host that has not confirmed -> when to send again, and how long to wait then."""

    def add(self, facts: Iterable[Fact]) -> list[Fact]:
        """Learn facts; return the new ones. The first fact about a rank or host stays: it has one source."""
        new = {key: fact for fact in facts if (key := (fact.kind, fact.subject)) not in self.facts}
        self.facts |= new
        if new:
            self.digest = digest(sorted(self.facts))
        return list(new.values())

    def subjects(self, kind: FactKind) -> set[int]:
        """The ranks or hosts with a known fact of this kind."""
        return {subject for known, subject in self.facts if known is kind}

    def sent(self, hosts: Iterable[int], now: float) -> None:
        """These hosts have been sent all facts, and have to confirm them."""
        for host in hosts:
            _, wait_s = self._unsure.get(host, (0.0, _AGAIN_S / 2))
            wait_s = min(2 * wait_s, _MOST_S)
            self._unsure[host] = now + wait_s, wait_s

    def confirms(self, host: int, its_digest: int) -> bool:
        """Does a host know the same facts? Then no facts are sent to it again."""
        if its_digest == self.digest:
            self._unsure.pop(host, None)
        return its_digest == self.digest

    def drop(self, host: int) -> None:
        """Send no more facts to this host."""
        self._unsure.pop(host, None)

    @property
    def settled(self) -> bool:
        """Have all hosts confirmed the facts that they were sent?"""
        return not self._unsure

    def waits_for(self, host: int) -> bool:
        """Has the host been sent facts that it has not confirmed?"""
        return host in self._unsure

    def due(self, now: float) -> list[int]:
        """The hosts that need the facts again now."""
        return [host for host, (when, _) in self._unsure.items() if when <= now]

    def wake_at(self) -> float:
        """The time of the next resend."""
        return min((when for when, _ in self._unsure.values()), default=float("inf"))
