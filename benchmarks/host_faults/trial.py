"""One fault while ranks wait in one place: what every rank says, when, and what is left behind."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from tests.support.cluster import Cluster

import unisono

from .rank import Meeting, Role, play

FAULTS = {
    "kill": "SIGKILL to a rank", "kill rank 0": "the same, to the rank that holds the store",
    "stop": "SIGSTOP to a rank, SIGCONT when all others have ended", "Ctrl-C": "SIGINT to a rank that waits",
    "late": "nothing happens, but time is up", "cut link": "a host's cable is pulled, and stays so",
    "cut switch": "all cables", "cut pair": "the link between two hosts, of three",
    "kill host": "SIGKILL to all ranks of a host and its sentinel",
    "kill sentinel": "SIGKILL to a host's sentinel alone",
    "stop host": "SIGSTOP to all ranks of a host and its sentinel, SIGCONT when all others have ended",
    "gone 1 s": "a cable is pulled, and plugged in again after one second", "gone 10 s": "after ten seconds",
}  # fmt: skip
"""What happens."""

_OF_HOSTS = {"cut link", "cut switch", "cut pair", "kill host", "kill sentinel", "stop host", "gone 1 s", "gone 10 s"}
_SHORT_LIMIT_S, _LIMIT_S = 4.0, 15.0
_UNDER_WAY = 3 << 20
"""Bytes that have left a host when a long call or long messages are under way."""
_SETTLE_S, _ASK_S = 0.3, 0.005
_MISSED_S = 2.5
_RATE = "200mbit"
_MOST_S, _LEFT_S = 60.0, 5.0
_ports = iter(range(29700, 32700))


class Ended(NamedTuple):
    """What a rank has said. after_s: since the fault; None: it has said nothing."""

    after_s: float | None
    error: str = ""
    text: str = ""
    named: tuple[int, ...] = ()
    after: str = ""
    left: tuple[int, ...] = ()
    seconds: float = 0.0


class Trial(NamedTuple):
    """victims: the ranks that the fault is about. absent: those who begin late. left_behind: the commands of processes
    on the hosts, after the end.
    """

    engine: str
    fault: str
    place: str
    victims: tuple[int, ...]
    absent: tuple[int, ...]
    said: dict[int, Ended]
    left_behind: tuple[str, ...]


def trial(cluster: Cluster, engine: str, fault: str, place: str, number: int, limit_s: float | None = None) -> Trial:
    """Run it. number: of the trial; victims take turns."""
    with tempfile.TemporaryDirectory() as folder:
        one = _Running(cluster, engine, fault, place, number, folder, limit_s)
        watching = threading.Thread(target=one.watch)
        watching.start()
        unisono.run(play, cluster.hosts.ranks, (folder, one.role), timeout_s=2 * _MOST_S, return_exceptions=True)
        watching.join()
    said = {rank: one.ended(rank) for rank in range(cluster.hosts.ranks)}
    return Trial(engine, fault, place, one.victims, tuple(sorted(one.role.late)), said, tuple(_left_behind(cluster)))


class _Running:
    """One trial, by who watches it."""

    def __init__(
        self, cluster: Cluster, engine: str, fault: str, place: str, number: int, folder: str, limit_s: float | None
    ) -> None:
        self._cluster, self._fault, self._meeting = cluster, fault, Meeting(folder)
        hosts = cluster.hosts
        host = number % len(hosts.members)
        if fault == "kill rank 0":
            host = 0
        elif fault == "kill":
            host = 1 + number % (len(hosts.members) - 1)
        absent, other = hosts.members[host][0], hosts.members[(host + 1) % len(hosts.members)][0]
        self._host = host
        self.victims: tuple[int, ...] = (absent,)
        others = absent
        if fault in _OF_HOSTS:
            others = other if len(hosts.members[host]) > 1 else absent
            self.victims = hosts.members[host]
            if fault == "cut pair":  # the later one of the two has to go
                self.victims = hosts.members[max(host, (host + 1) % len(hosts.members))]
        elif fault == "Ctrl-C":
            self.victims = (other,)
        limit = limit_s or (_SHORT_LIMIT_S if fault in ("stop", "late") else _LIMIT_S)
        self.role = Role(engine, hosts, tuple(cluster.names), next(_ports), place, absent, others, limit)
        self._pids: dict[int, int] = {}
        self._began = 0.0
        self._said: dict[int, Any] = {}

    def ended(self, rank: int) -> Ended:
        """What a rank has said."""
        said = self._said.get(rank)
        if said is None:
            return Ended(None)
        return Ended(
            said["at"] - self._began, said["error"], said["text"], tuple(said["named"]), said.get("after", ""),
            tuple(said.get("left", ())), said.get("seconds", 0.0),
        )  # fmt: skip

    def watch(self) -> None:
        """Wait until the ranks wait, let it happen, and take down what they say."""
        ranks = set(range(self._cluster.hosts.ranks))
        try:
            if self.role.place in ("long call", "messages"):
                self._cluster.rate(_RATE)
            if not self._until(lambda: all(self._meeting.has(f"waits {rank}") for rank in ranks)):
                return
            before = self._cluster.sent(self._host)
            self._pids = {rank: self._meeting.heard(f"waits {rank}") for rank in ranks}
            if self.role.place in ("long call", "messages"):
                self._until(lambda: self._cluster.sent(self._host) - before > _UNDER_WAY)
            else:
                time.sleep(_SETTLE_S)
            self._began = time.monotonic()
            dead, stopped = self._happen()
            if self._fault not in ("late", "kill sentinel"):
                self._meeting.tell("go")
            if self._fault == "kill sentinel":  # without it calls go on well until it is missed
                time.sleep(_MISSED_S)
                self._meeting.tell("go")
            self._until_told(ranks - dead - stopped - (self.role.late if self._fault == "late" else set()))
            for pid in self._all_pids(stopped):
                os.kill(pid, signal.SIGCONT)
            self._meeting.tell("go")
            self._until_told(ranks - dead)
        finally:
            self._mend()
            self._meeting.tell("over")
            self._said = {rank: self._meeting.heard(f"told {rank}") for rank in ranks}
            self._end_others()

    def _happen(self) -> tuple[set[int], set[int]]:
        """The fault. Returns the ranks that are dead, and those that are stopped."""
        cluster, host, victims = self._cluster, self._host, set(self.victims)
        match self._fault:
            case "kill" | "kill rank 0":
                self._signal(victims, signal.SIGKILL)
                return victims, set()
            case "kill host":
                _kill(self._all_pids(victims), signal.SIGKILL)
                return victims, set()
            case "kill sentinel":
                _kill(self._sentinels(), signal.SIGKILL)
            case "stop":
                self._signal(victims, signal.SIGSTOP)
                return set(), victims
            case "stop host":
                _kill(self._all_pids(victims), signal.SIGSTOP)
                return set(), victims
            case "Ctrl-C":
                self._signal(victims, signal.SIGINT)
            case "cut link":
                cluster.cut(host)
            case "cut switch":
                for each in range(len(cluster.names)):
                    cluster.cut(each)
            case "cut pair":
                cluster.cut_pair(host, (host + 1) % len(cluster.names))
            case "gone 1 s" | "gone 10 s":
                cluster.cut(host)
                self._meeting.tell("go")
                time.sleep(float(self._fault.split()[1]))
                cluster.mend(host)
        return set(), set()

    def _mend(self) -> None:
        cluster, hosts = self._cluster, range(len(self._cluster.names))
        cluster.rate("none")
        if self._fault in ("cut link", "cut switch"):
            for host in hosts if self._fault == "cut switch" else [self._host]:
                cluster.mend(host)
        elif self._fault == "cut pair":
            cluster.mend_pair(self._host, (self._host + 1) % len(hosts))

    def _signal(self, ranks: Iterable[int], number: int) -> None:
        _kill([self._pids[rank] for rank in ranks], number)

    def _all_pids(self, ranks: set[int]) -> list[int]:
        """The processes of these ranks; if they are all of a host, its sentinel's, too."""
        pids = [self._pids[rank] for rank in ranks]
        return pids + (self._sentinels() if self._fault in _OF_HOSTS and ranks else [])

    def _sentinels(self) -> list[int]:
        return [pid for pid in self._cluster.processes(self._host) if pid not in self._pids.values()]

    def _until_told(self, ranks: set[int]) -> None:
        self._until(lambda: all(self._meeting.has(f"told {rank}") for rank in ranks))

    def _until(self, condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + _MOST_S
        while not condition() and time.monotonic() < end:
            time.sleep(_ASK_S)
        return condition()

    def _end_others(self) -> None:
        """End ranks that have said nothing, so that the trial ends."""
        silent = [rank for rank, pid in self._pids.items() if self._said[rank] is None]
        self._signal(silent, signal.SIGKILL)


def _kill(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _left_behind(cluster: Cluster) -> list[str]:
    """Processes that do not end within some seconds. They are killed, so that the next trial is its own."""
    end = time.monotonic() + _LEFT_S
    while True:
        found = [pid for host in range(len(cluster.names)) for pid in cluster.processes(host)]
        if not found or time.monotonic() > end:
            break
        time.sleep(_ASK_S)
    left = [_command(pid) for pid in found]
    _kill(found, signal.SIGKILL)
    return left


def _command(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace")[:80]
    return "that has just ended"
