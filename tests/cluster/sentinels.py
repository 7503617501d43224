"""Figures of sentinels on hosts in network namespaces; needs root.

    python -m tests.cluster.sentinels

Of 2, 4 and 8 hosts: when another host knows of a killed rank; when another process goes on for a killed sentinel, and
when a rank has started both processes again; what share of a processor an idle sentinel takes; and that cuts of the
network of 1 to 4 s cost nothing.
"""

import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import typer

from tests.support.cluster import Cluster, enter
from tests.support.fake_hosts import WORLD, FakeHosts, send_with_spare, sentinel_of, spare_of
from tests.support.waiting import until
from unisono.base.config import Config
from unisono.schedule import Hosts

_DEATHS, _KILLS, _CUTS, _IDLE_S = 40, 20, (1.0, 2.0, 3.0, 4.0), 10.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure, and print."""
    typer.echo(
        "hosts  known, median and 99 %  next sentinel, median and longest  both again, the same  share when idle  cuts"
    )
    for hosts in (2, 4, 8):
        shape = "+".join(["1", f"{1 + _DEATHS}", *["1"] * (hosts - 2)])
        with ExitStack() as stack:
            cluster = stack.enter_context(closing(Cluster(Hosts.parse(shape))))
            fake = stack.enter_context(FakeHosts(shape, silent_s=Config().host_silence_s, cluster=cluster))
            known, share, again, both, lived = _Job(cluster, fake).figures()
        typer.echo(
            f"{hosts:5}  {_ms(statistics.median(known))} {_ms(statistics.quantiles(known, n=100)[-1])}"
            f"  {_ms(statistics.median(again))} {_ms(max(again))}"
            f"  {_ms(statistics.median(both))} {_ms(max(both))}  {100 * share:.2f} %"
            f"  {', '.join(f'{cut_s:g} s' for cut_s in lived)} lived through"
        )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:6.1f} ms"


class _Job:
    """Hosts with their sentinels, and a thread on each host that speaks for its first rank."""

    def __init__(self, cluster: Cluster, fake: FakeHosts) -> None:
        self._cluster, self._fake, self._hosts = cluster, fake, range(len(cluster.names))
        self._threads = [ThreadPoolExecutor(1, initializer=enter, initargs=(name,)) for name in cluster.names]

    def figures(self) -> tuple[list[float], float, list[float], list[float], list[float]]:
        """When deaths are known; an idle sentinel's share; when the next one serves, where one process is killed, and
        where both are; the cuts that cost nothing.
        """
        self._refresh()
        share = self._idle_share()
        known = [self._death(rank) for rank in self._fake.hosts.members[1][1:]]
        rng = random.Random(1)
        again = [self._kill(rng.choice(self._hosts), both=False) for _ in range(_KILLS)]
        both = [self._kill(rng.choice(self._hosts), both=True) for _ in range(_KILLS)]
        cuts = [cut_s for cut_s in _CUTS if self._lives_through(cut_s)]
        for thread in self._threads:
            thread.shutdown()
        return known, share, again, both, cuts

    def _on(self, host: int, function: Callable[[], Any]) -> Any:
        return self._threads[host].submit(function).result()

    def _refresh(self) -> None:
        """Every host gets answers from all others."""
        for host in self._hosts:
            far = self._fake.far[host]
            self._on(host, partial(_ask, far))
            assert self._on(host, partial(getattr, far, "cut_off")) is None

    def _sentinel(self, host: int) -> int:
        pid: int = self._on(host, lambda: sentinel_of(self._fake.far[host]))
        return pid

    def _idle_share(self) -> float:
        pids = [pid for host in self._hosts for pid in (self._sentinel(host), spare_of(self._sentinel(host)))]
        before = sum(map(_processor_s, pids))
        time.sleep(_IDLE_S)
        return (sum(map(_processor_s, pids)) - before) / _IDLE_S / len(self._hosts)

    def _death(self, rank: int) -> float:
        board, began = self._fake.arenas[0].board(rank), time.monotonic()
        self._fake.sleepers[rank].kill()
        until(lambda: board.gone is not None)
        return time.monotonic() - began

    def _kill(self, host: int, *, both: bool) -> float:
        before = self._sentinel(host)
        spare_of(before)
        began = time.monotonic()
        if both:
            send_with_spare(self._fake.far[host], signal.SIGKILL)
        else:
            os.kill(before, signal.SIGKILL)
        self._on(host, lambda: until(lambda: self._fake.far[host].sentinel_pid != before))
        took_s = time.monotonic() - began
        self._refresh()
        return took_s

    def _lives_through(self, cut_s: float) -> bool:
        self._cluster.cut(1)
        time.sleep(cut_s)
        self._cluster.mend(1)
        self._refresh()
        time.sleep(1.0)
        return not any(self._on(host, partial(self._fake.lost, host)) for host in self._hosts)


def _ask(far: Any) -> None:
    ticket = far.ask(WORLD)
    until(lambda: far.answered(ticket))


def _processor_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


if __name__ == "__main__":
    typer.run(main)
