"""How soon one host knows what happens on another one: python -m benchmarks.sentinels

Sentinels of two hosts on this machine, over loopback. Start: until both, one after the other, have told their
addresses. Death: from the kill until the rank is gone on the other host's board. Wake: from the word until it is there.
Ask: until the ticket is fresh. Lost: from the kill of a sentinel until its host is lost. Idle: the share of a processor
that a sentinel takes.

With `--hosts 256`: what so many sentinels take that only beat. In a network namespace of its own, so that nobody else's
datagrams count: unshare -n sh -c 'ip link set lo up; python -m benchmarks.sentinels --hosts 256'
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, NamedTuple

import typer
from tests.support.fake_hosts import WORLD, FakeHosts

from unisono.base.config import Config
from unisono.base.records import GivenUp
from unisono.base.units import format_bytes
from unisono.engine.memory.arena import Arena
from unisono.engine.process.alive import start_ticks
from unisono.hosts.far import Far
from unisono.hosts.sentinel.host_liveness import BEAT_S
from unisono.hosts.sentinel.start import Sentinel
from unisono.schedule import Hosts

__all__ = ["Many", "many", "measure"]

_SETTLE_S = 6.0
"""More than a host may take to be heard for the first time."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def measure(rounds: int, idle_s: float) -> dict[str, list[float]]:
    """Seconds, by what was measured."""
    found: dict[str, list[float]] = {"start": [], "death": [], "wake": [], "ask": [], "lost": []}
    for number in range(rounds):
        with FakeHosts("2x2") as fake:
            found["start"].append(fake.started_s)
            here, there = fake.arenas
            _refresh(fake)
            for k in range(1, 11):
                found["ask"].append(_timed(partial(_refresh, fake)))
                here.board(0).set_gave_up(GivenUp(k, reason="tired"))
                fake.far[0].wake(WORLD)
                found["wake"].append(_until(partial(_gave_up, there, k)))
            fake.sleepers[3].kill()
            found["death"].append(_until(partial(_has_gone, here, 3)))
            if number == 0:
                pid = fake.sentinels[0].pid
                before = _processor_s(pid)
                time.sleep(idle_s)
                found["idle, of a processor"] = [(_processor_s(pid) - before) / idle_s]
                fake.kill_sentinel(1)
                found["lost"].append(_until(lambda: bool(fake.far[0].lost_hosts)))
    return found


def _refresh(fake: FakeHosts) -> None:
    ticket = fake.far[1].ask(WORLD)
    _until(lambda: fake.far[1].answered(ticket))


def _gave_up(arena: Arena, number: int) -> bool:
    return arena.board(0).gave_up.number == number


def _has_gone(arena: Arena, rank: int) -> bool:
    return arena.board(rank).gone is not None


def _timed(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _until(condition: Callable[[], bool]) -> float:
    began = time.perf_counter()
    while not condition():
        time.sleep(0)
    return time.perf_counter() - began


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


class Many(NamedTuple):
    """What many sentinels take. start_s: until all have told their addresses. beat_s: of a processor, for one beat of
    one sentinel, with all that it hears meanwhile. memory: its own, in bytes (least, most). datagrams: of all, a
    second. lost: hosts taken for lost though they are there. lost_s: until one is that has been killed.
    """

    start_s: float
    beat_s: float
    memory: tuple[int, int]
    datagrams: float
    lost: int
    lost_s: float


def many(hosts: int, idle_s: float) -> Many:
    """Start the sentinels of so many hosts, in one memory, of one rank each, which is this process; let them beat."""
    with ExitStack() as stack:
        arena = Arena.create(hosts, Config(heap_bytes=4 << 20))
        stack.callback(arena.close)
        shape, secret = Hosts.parse(f"{hosts}x1"), secrets.token_bytes(32)
        names, silent_s = [secrets.token_hex(8) for _ in range(hosts)], Config().host_silence_s
        me = os.getpid(), start_ticks(os.getpid())

        def start(host: int) -> Sentinel:
            return Sentinel.start(arena.fd, shape, host, {host: me}, "127.0.0.1", secret, names[host], silent_s)

        began = time.perf_counter()
        sentinels = list(stack.enter_context(ThreadPoolExecutor(os.cpu_count())).map(start, range(hosts)))
        start_s = time.perf_counter() - began
        pidfds = [os.pidfd_open(sentinel.pid) for sentinel in sentinels]
        stack.callback(_end, pidfds)
        for sentinel in sentinels:
            sentinel.introduce([other.address for other in sentinels])
        far = Far(arena, shape, 0, names[0], silent_s)
        stack.callback(far.close)
        time.sleep(_SETTLE_S)
        before, datagrams = [_processor_s(sentinel.pid) for sentinel in sentinels], _datagrams()
        time.sleep(idle_s)
        spent = sum(_processor_s(sentinel.pid) for sentinel in sentinels) - sum(before)
        rate = (_datagrams() - datagrams) / idle_s
        memory = [_own_bytes(sentinel.pid) for sentinel in sentinels]
        lost = len(far.lost_hosts)
        signal.pidfd_send_signal(pidfds[-1], signal.SIGKILL)
        lost_s = _until(lambda: hosts - 1 in far.lost_hosts)
        return Many(start_s, spent / hosts / (idle_s / BEAT_S), (min(memory), max(memory)), rate, lost, lost_s)


def _end(pidfds: Sequence[int]) -> None:
    for fd in pidfds:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)


def _datagrams() -> int:
    """How many datagrams have been sent in this network namespace."""
    names, values = (
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Udp:")
    )
    return int(values[names.index("OutDatagrams")])


def _own_bytes(pid: int) -> int:
    """What a process has that no other one has, too."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 20,
    idle_s: float = 10.0,
    hosts: Annotated[int, typer.Option(help="So many sentinels that only beat, instead.")] = 0,
) -> None:
    """Print median, p99 and the most of each."""
    if hosts:
        took = many(hosts, idle_s)
        print(
            f"{hosts} sentinels: started in {took.start_s:.1f} s; {took.beat_s * 1e3:.2f} ms of a processor for a beat"
        )
        print(f"memory of its own: {' to '.join(format_bytes(nbytes) for nbytes in took.memory)} a process")
        print(f"{took.datagrams:,.0f} datagrams a second, {took.datagrams / hosts:.1f} each")
        print(f"lost though there: {took.lost}; one that was killed: lost after {took.lost_s:.2f} s")
        return
    for name, values in measure(rounds, idle_s).items():
        p99 = quantiles(values, n=100)[98] if len(values) > 1 else values[0]
        print(
            f"{name:24} median {median(values) * 1e3:8.2f}   p99 {p99 * 1e3:8.2f}   least {min(values) * 1e3:8.2f} ms"
        )


if __name__ == "__main__":
    typer.run(main)
