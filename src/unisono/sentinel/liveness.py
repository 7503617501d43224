"""Which hosts are heard, and which have been silent for too long.

Up to 32 hosts, each tells all others that it lives; above that, those 1, 2, 4, ... places further on in the circle of
the hosts that live. When one is lost or leaves, the circle closes, so everyone is always listened to. While a host
misses some of those that it listens to, it asks all others whether they are there: it may be the one that is cut off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

__all__ = ["BEAT_S", "SILENT_S", "Liveness"]

BEAT_S, SILENT_S = 0.25, 1.5
_FIRST_S = 5.0
"""How long a host may take to be heard for the first time."""
_ALL_PAIRS = 32
_MISSED_S = 0.75
"""How long a host has been silent when it is missed; then all are asked."""
_DOUBT_S = 0.75
"""How much longer a host may be silent where others hear it, and would rather lose this one: the link may be broken."""
_LATELY_S = 2.4 * BEAT_S
"""What counts as lately, twice, is less than SILENT_S - BEAT_S: a host that nobody hears is not waited for longer."""


class Liveness:
    """The hosts that live, as one of them, `me`, sees them. told: those that it tells that it lives."""

    def __init__(self, hosts: int, me: int, now: float) -> None:
        self._me = me
        self.living = list(range(hosts))
        self.told: Collection[int] = ()
        self._until: dict[int, float] = {}
        """Of each host that this one listens to: when it has been silent for too long."""
        self._asked_until: dict[int, float] = {}
        """The same of each other host, while one is missed."""
        self._heard: dict[int, float] = {}
        self._heard_by: dict[int, dict[int, float]] = {}
        """Of each host: who has said that it hears it, and until when that counts."""
        self._close_circle(now + _FIRST_S)

    @property
    def asked(self) -> Collection[int]:
        """The hosts that are asked whether they are there."""
        return self._asked_until

    def hear(self, host: int, now: float) -> None:
        """Something has come from that host."""
        self._heard[host] = now
        for until in (self._until, self._asked_until):
            if host in until:
                until[host] = now + SILENT_S

    def believe(self, host: int, hears: bytes, now: float) -> None:
        """That host has said which hosts it has heard lately."""
        bits = int.from_bytes(hears, "little")
        for other in self._until:
            if bits >> other & 1:
                self._heard_by.setdefault(other, {})[host] = now + _LATELY_S

    def hears(self, now: float) -> bytes:
        """The hosts that this one has heard lately, as bits."""
        bits = sum(1 << host for host, when in self._heard.items() if now - when < _LATELY_S)
        return bits.to_bytes((bits.bit_length() + 7) // 8, "little")

    def remove(self, hosts: Iterable[int], now: float) -> None:
        """These hosts are lost or have left."""
        gone = set(hosts)
        self.living = [host for host in self.living if host not in gone]
        self._close_circle(now + 2 * SILENT_S)

    def ask_all(self, now: float) -> bool:
        """Begin or end to ask all hosts. True if it begins now."""
        misses = any(until - _MISSED_S <= now for until in self._until.values())
        if not misses:
            self._asked_until = {}
        elif not self._asked_until:
            others = set(self.living) - set(self._until) - {self._me}
            self._asked_until = dict.fromkeys(others, now + _MISSED_S)
            return bool(others)
        return False

    def silent(self, now: float) -> list[int]:
        """The hosts that have been silent for too long."""
        silent = [host for host, until in self._until.items() if until <= now and self._patience(host) <= now]
        return silent + [host for host, until in self._asked_until.items() if until <= now]

    def wake_at(self, now: float) -> float:
        """When a host is missed, or will have been silent for too long, if it stays silent."""
        times = [until if until > now else self._patience(host) for host, until in self._until.items()]
        if self._asked_until:
            times += self._asked_until.values()
        elif len(self.living) > _ALL_PAIRS:
            times = [until - _MISSED_S for until in times]
        return min(times, default=float("inf"))

    def _patience(self, host: int) -> float:
        """When a host has been silent for too long.

        If others hear both, only the link between the two is broken, and one of them has to go: the later one. That
        one waits to be told.
        """
        until = self._until[host]
        heard_by = any(when > until for by, when in self._heard_by.get(host, {}).items() if by in self.living)
        return until + _DOUBT_S if heard_by and host < self._me else until

    def _close_circle(self, first: float) -> None:
        """Choose anew whom to tell and whom to listen to. first: until when who is new has to be heard."""
        living, before = self.living, self._until
        self.told, self._until = (), {}
        if self._me in living:
            n, place = len(living), living.index(self._me)
            steps = range(1, n) if n <= _ALL_PAIRS else [1 << k for k in range((n - 1).bit_length())]
            self.told = dict.fromkeys(living[(place + step) % n] for step in steps)
            listened = dict.fromkeys(living[(place - step) % n] for step in steps)
            self._until = {host: before.get(host, first) for host in listened}
        self._asked_until = {host: until for host, until in self._asked_until.items() if host in living}
        for host in self._until:
            self._asked_until.pop(host, None)
