"""Which hosts are heard, and which have been silent for too long.

With up to 32 hosts, each tells all others that it lives. With more, it tells the hosts 1, 2, 4, ... places further on
in the circle of living hosts. When a host is lost or leaves, the circle closes, so every host always has listeners. If
a host misses some of the hosts that it listens to, it asks all others whether they are there: it may be cut off itself.
"""

from collections.abc import Collection, Iterable

from . import BEAT_S, FIRST_S

_BEATS = 6  # a host that has been silent for too long has missed at least this number of beats
_ALL_PAIRS = 32
_GROW_S = 2 * BEAT_S
"""This long after the first host has been silent for too long, all hosts that are silent then are lost. So hosts behind
a cut link are lost together, and a host that is heard again meanwhile is not lost.
"""


class Liveness:
    """The hosts that live, as one of them, `me`, sees them. silent_s: how long a host may be silent.

    told: the hosts that it tells, every beat_s, that it lives.
    """

    def __init__(self, hosts: int, me: int, now: float, silent_s: float) -> None:
        self._me, self._silent_s, self.beat_s = me, silent_s, min(BEAT_S, silent_s / _BEATS)
        self._missed_s = silent_s / 2  # a host is missed after a silence of this length: then this host asks all others
        self._doubt_s = silent_s / 2
        """How much longer a host may be silent if others still hear it: perhaps only the link to it is broken. Of the
        two hosts the one with the higher number is lost then, see `_patience`.
        """
        self._lately_s = 2.4 * self.beat_s
        """The age up to which a word counts as lately. Twice this is less than silent_s - beat_s: so a host that no
        other host hears gets no extra time.
        """
        self._lose_at = float("inf")  # when the hosts that have been silent for too long are lost
        self.living = list(range(hosts))
        self.told: Collection[int] = ()
        self._until: dict[int, float] = {}
        """Host that this one listens to -> the time from which on it has been silent for too long."""
        self._asked_until: dict[int, float] = {}  # the same for all other hosts, while this host misses one
        self._heard: dict[int, float] = {}
        self._heard_by: dict[int, dict[int, float]] = {}
        """Host -> the hosts that have said that they hear it, and until when their word counts."""
        self._close_circle(now + max(FIRST_S, silent_s))

    @property
    def asked(self) -> Collection[int]:
        """The hosts that are asked whether they are there."""
        return self._asked_until

    def hear(self, host: int, now: float) -> None:
        """A datagram of this host has come."""
        self._heard[host] = now
        for until in (self._until, self._asked_until):
            if host in until:
                until[host] = now + self._silent_s

    def believe(self, host: int, hears: Iterable[int], now: float) -> None:
        """This host has said which hosts it has heard lately."""
        for other in self._until.keys() & set(hears):
            self._heard_by.setdefault(other, {})[host] = now + self._lately_s

    def hears(self, now: float) -> tuple[int, ...]:
        """The hosts that this one has heard lately."""
        return tuple(host for host, when in self._heard.items() if now - when < self._lately_s)

    def remove(self, hosts: Iterable[int], now: float) -> None:
        """These hosts are lost or have left."""
        gone = set(hosts)
        self.living = [host for host in self.living if host not in gone]
        self._close_circle(now + 2 * self._silent_s)

    def ask_all(self, now: float) -> bool:
        """Begin or stop to ask all hosts. True if it begins now."""
        misses = any(until - self._missed_s <= now for until in self._until.values())
        if not misses:
            self._asked_until = {}
        elif not self._asked_until:
            others = set(self.living) - set(self._until) - {self._me}
            self._asked_until = dict.fromkeys(others, now + self._missed_s)
            return bool(others)
        return False

    def lost(self, now: float) -> list[int]:
        """The hosts that are lost now: all that are silent, some time after the first one was found."""
        silent = [host for host, until in self._until.items() if until <= now and self._patience(host) <= now]
        silent += [host for host, until in self._asked_until.items() if until <= now]
        self._lose_at = min(self._lose_at, now + _GROW_S) if silent else float("inf")
        return silent if now >= self._lose_at else []

    def wake_at(self, now: float) -> float:
        """When a host is missed next, or silent for too long, or lost, if it stays silent."""
        times = [until if until > now else self._patience(host) for host, until in self._until.items()]
        found = self._lose_at < float("inf")
        if self._asked_until:
            times += self._asked_until.values()
        elif len(self.living) > _ALL_PAIRS:
            times = [until - self._missed_s for until in times]
        return min([self._lose_at, *(when for when in times if when > now or not found)])

    def _patience(self, host: int) -> float:
        """When a host has been silent for too long.

        If other hosts hear both this host and the silent one, only the link between the two is broken, and one of the
        two is lost: the one with the higher number. If it is this host, it waits longer, until another host tells it.
        """
        until = self._until[host]
        heard_by = any(when > until for by, when in self._heard_by.get(host, {}).items() if by in self.living)
        return until + self._doubt_s if heard_by and host < self._me else until

    def _close_circle(self, first: float) -> None:
        """Choose anew the hosts to tell and to listen to. first: until when new hosts have to be heard."""
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
