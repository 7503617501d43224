"""Faults over several hosts, in network namespaces: `python -m benchmarks.host_faults`, as root."""

import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import product
from statistics import median
from typing import Annotated, NamedTuple

import typer
from tests.support.cluster import Cluster, why_not

import unisono
from unisono.base.units import format_seconds
from unisono.schedule import Hosts

from ..runs import HOSTS, Output, Table, begin, grouped, hand_in
from ..turns import Meeting, until
from .rank import LATE_PLACES, PLACES, Role, play

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
_SETTLE_S, _MISSED_S = 0.3, 2.5
_RATE = "200mbit"
_MOST_S, _LEFT_S = 60.0, 5.0
_ports = iter(range(29700, 32700))


class Ended(NamedTuple):
    """What a rank has said. after_s: since the fault; None: it has said nothing."""

    after_s: float | None
    error: str = ""
    text: str = ""
    named: Sequence[int] = ()
    after: str = ""
    left: Sequence[int] = ()
    seconds: float = 0.0


class Trial(NamedTuple):
    """victims: the ranks that the fault is about. absent: those who begin late. left_behind: the commands of processes
    on the hosts, after the end.
    """

    fault: str
    place: str
    victims: Sequence[int]
    absent: Sequence[int]
    said: dict[int, Ended]
    left_behind: Sequence[str]


def trial(cluster: Cluster, fault: str, place: str, number: int) -> Trial:
    """Run it. number: of the trial; victims take turns."""
    with tempfile.TemporaryDirectory() as folder:
        one = _Running(cluster, fault, place, number, folder)
        watching = threading.Thread(target=one.watch)
        watching.start()
        unisono.run(play, cluster.hosts.ranks, (folder, one.role), timeout_s=2 * _MOST_S, return_exceptions=True)
        watching.join()
    return Trial(fault, place, one.victims, tuple(sorted(one.role.late)), one.said, _left_behind(cluster))


class _Running:
    """One trial, by who watches it. said: by rank, what each has said at the end."""

    def __init__(self, cluster: Cluster, fault: str, place: str, number: int, folder: str) -> None:
        self._cluster, self._fault, self._meeting = cluster, fault, Meeting(folder)
        hosts = cluster.hosts
        self._host = number % len(hosts.members)
        if fault in ("kill rank 0", "kill"):
            self._host = 0 if fault == "kill rank 0" else 1 + number % (len(hosts.members) - 1)
        self._next = (self._host + 1) % len(hosts.members)
        here, there = hosts.members[self._host], hosts.members[self._next]
        absent = others = here[0]
        self.victims: tuple[int, ...] = (there[0] if fault == "Ctrl-C" else absent,)
        if fault in _OF_HOSTS:
            others = there[0] if len(here) > 1 else absent
            self.victims = here
            if fault == "cut pair":  # the later one of the two has to go
                self.victims = hosts.members[max(self._host, self._next)]
        limit = _SHORT_LIMIT_S if fault in ("stop", "late") else _LIMIT_S
        self.role = Role(hosts, tuple(cluster.names), next(_ports), place, absent, others, limit)
        self._ranks, self._pids = set(range(hosts.ranks)), dict[int, int]()
        self.said = dict.fromkeys(self._ranks, Ended(None))

    def watch(self) -> None:
        """Wait until the ranks wait, let it happen, and take down what they say."""
        ranks, under_way, began = self._ranks, self.role.place in ("long call", "messages"), 0.0
        try:
            if under_way:
                self._cluster.rate(_RATE)
            if not until(lambda: self._meeting.told("waits", ranks).keys() == ranks, _MOST_S):
                return
            before = self._cluster.sent(self._host)
            self._pids = self._meeting.told("waits", ranks)
            if under_way:
                until(lambda: self._cluster.sent(self._host) - before > _UNDER_WAY, _MOST_S)
            else:
                time.sleep(_SETTLE_S)
            began = time.monotonic()
            dead, stopped = self._happen()
            if self._fault == "kill sentinel":
                time.sleep(_MISSED_S)  # without it calls go on well until it is missed
            if self._fault != "late":
                self._meeting.tell("go")
            self._until_told(ranks - dead - stopped - (self.role.late if self._fault == "late" else set()))
            for pid in self._all_pids(stopped):
                os.kill(pid, signal.SIGCONT)
            self._meeting.tell("go")
            self._until_told(ranks - dead)
        finally:
            self._mend()
            self._meeting.tell("over")
            told = self._meeting.told("told", ranks)
            self.said |= {rank: Ended(end.pop("at") - began, **end) for rank, end in told.items()}
            self._signal(self._pids.keys() - told.keys(), signal.SIGKILL)  # so that the trial ends

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
                cluster.cut_pair(host, self._next)
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
            cluster.mend_pair(self._host, self._next)

    def _signal(self, ranks: Iterable[int], number: int) -> None:
        _kill([self._pids[rank] for rank in ranks], number)

    def _all_pids(self, ranks: set[int]) -> list[int]:
        """The processes of these ranks; if they are all of a host, its sentinel's, too."""
        pids = [self._pids[rank] for rank in ranks]
        return pids + (self._sentinels() if self._fault in _OF_HOSTS and ranks else [])

    def _sentinels(self) -> list[int]:
        return [pid for pid in self._cluster.processes(self._host) if pid not in self._pids.values()]

    def _until_told(self, ranks: set[int]) -> None:
        until(lambda: self._meeting.told("told", ranks).keys() == ranks, _MOST_S)


def _kill(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _left_behind(cluster: Cluster) -> tuple[str, ...]:
    """Processes that do not end within some seconds. They are killed, so that the next trial is its own."""

    def found() -> list[int]:
        return [pid for host in range(len(cluster.names)) for pid in cluster.processes(host)]

    until(lambda: not found(), _LEFT_S)
    pids = found()
    left = tuple(map(_command, pids))
    _kill(pids, signal.SIGKILL)
    return left


def _command(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace")[:80]
    return "that has just ended"


_HOW = """\
Hosts are network namespaces of this machine, joined by a switch; links have 200 Mbit/s where long messages are under
way. Ranks wait in one place, something happens, and each says how its call has ended. `gate`: in an all_reduce that
one rank has not begun, which is the victim, or on its host. `send`, `receive`: in a message of 4 MiB to or from that
rank. `long call`: all ranks are in an all_reduce of 32 MiB. `messages`: all send 4 MiB to all ranks of other hosts.
Who has not begun does so as soon as the fault has happened, if it is there.

Times are from the fault to the error, of all survivors in all trials: median, worst. *Names*: how many errors name
victims and nobody else; where hosts are cut off, ranks of the other side. A message names the one who does not
answer: that is another one where this one has gone on without the victim. And a death does not end messages between
others: in `messages` a rank hears of it when it comes to wait for one from or to the victim, or for a rank that has
gone on. *Goes on*: how many then have a smaller
group in which an all_reduce is right (by `shrink`; of those who were late, `shrink(without=...)`), and the time that
takes. *Left out*: how many are told so. *Same*: in how many trials all who go on have the same members. *Left*: in
how many trials a process is there five seconds after the end."""


def table(trials: Sequence[Trial], hosts: Hosts) -> Table:
    """A row for each fault in each place."""
    times = ["median", "worst"]
    after = ["goes on", *(f"after {each}" for each in times), "left out", "same", "left"]
    return Table("faults", ["fault", "place", "trials", "errors", "names", *times, *after], list(_rows(trials, hosts)))


def _survivors(one: Trial) -> dict[int, Ended]:
    """The ranks that the fault has not ended, or stopped, and so must say something."""
    ended = {"kill", "kill rank 0", "kill host", "stop", "stop host", "Ctrl-C"}
    return {rank: end for rank, end in one.said.items() if rank not in one.victims or one.fault not in ended}


def _right(one: Trial, rank: int, end: Ended, hosts: Hosts) -> bool:
    here, named = hosts.beside(rank), set(end.named)
    if one.fault == "late":
        return bool(named) and named <= set(one.absent)
    if rank in one.victims or (one.fault == "cut switch" and end.error):
        return bool(named) and named.isdisjoint(here)
    return bool(named) and named <= set(one.victims)


def _rows(trials: Sequence[Trial], hosts: Hosts) -> Iterator[list[str | int]]:
    for (fault, place), found in grouped(trials, "fault", "place").items():
        ends = [(one, rank, end) for one in found for rank, end in _survivors(one).items()]
        errors = [(one, rank, end) for one, rank, end in ends if end.error]
        said = Counter(end.error or ("nothing" if end.after_s is None else "none") for _, _, end in ends)
        kinds = ", ".join(f"{each} ×{count}" if len(said) > 1 else each for each, count in said.most_common())
        right = sum(_right(one, rank, end, hosts) for one, rank, end in errors)
        goes = [end for _, _, end in ends if end.after == "right"]
        same = sum(
            len({tuple(end.left) for end in _survivors(one).values() if end.after == "right"}) <= 1 for one in found
        )
        left = sum(bool(one.left_behind) for one in found)
        yield [
            fault, place, len(found), kinds if errors else "no error",
            f"{right} of {len(errors)}" if errors else "",
            *_median_and_worst([end.after_s for _, _, end in ends if end.after_s is not None]),
            f"{len(goes)} of {len(ends)}" if errors else "same group",
            *_median_and_worst([end.seconds for end in goes] if errors else []),
            sum(end.after == "LeftOut" for _, _, end in ends), f"{same} of {len(found)}", left,
        ]  # fmt: skip


def _median_and_worst(seconds: Sequence[float]) -> list[str]:
    return [format_seconds(figure(seconds)) if seconds else "" for figure in (median, max)]


def bench_host_faults(
    *,
    shape: Annotated[str, typer.Option(help="Hosts.")] = "3x2",
    trials: Annotated[int, typer.Option(min=1, help="Trials of each fault in each place.")] = 3,
    faults: Annotated[str, typer.Option(help="Which faults.")] = ",".join(FAULTS),
    places: Annotated[str, typer.Option(help="Where ranks wait.")] = ",".join(PLACES),
    output: Output = None,
) -> None:
    """Let something happen while ranks wait, and see what each of them says, when, and what is left behind."""
    if reason := why_not():
        sys.exit(reason)
    parties = Hosts.parse(shape)
    how = f"{shape}: {len(parties.members)} hosts, {parties.ranks} ranks. {_HOW}"
    faults_in_words = "; ".join(f"`{name}`: {text}" for name, text in FAULTS.items())
    run = begin("Faults over several hosts", how, faults_in_words, code=[*HOSTS, "src/unisono/ranks"])
    done = list[Trial]()
    with closing(Cluster(parties)) as cluster:
        for fault, place in product(faults.split(","), places.split(",")):
            if fault == "late" and place not in LATE_PLACES:
                continue
            done += [trial(cluster, fault, place, number) for number in range(trials)]
            print(f"{fault}, {place}", file=sys.stderr, flush=True)
    run.tables.append(table(done, parties))
    hand_in(run, output)


if __name__ == "__main__":
    typer.run(bench_host_faults)
