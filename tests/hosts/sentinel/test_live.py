"""Sentinels as processes: their start and end, what ranks of a host learn of others, and strangers at their sockets."""

import os
import random
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.fake_hosts import WORLD, FakeHosts, send_with_spare, sentinel_of
from tests.support.programs import run_python
from tests.support.waiting import until
from unisono.base.config import Config
from unisono.base.errors import InternalError
from unisono.base.records import DepartureKind, GivenUp
from unisono.engine.memory.arena import Arena
from unisono.engine.process.alive import start_ticks
from unisono.hosts.far import Far
from unisono.hosts.sentinel import start
from unisono.hosts.sentinel.main import Watching
from unisono.hosts.sentinel.regions import Regions
from unisono.hosts.sentinel.start import Sentinel
from unisono.hosts.sentinel.state_machine import Ended
from unisono.schedule import Hosts

LEADER = """
import os, sys, secrets, signal
from unisono import Config
from unisono.engine.memory.arena import Arena
from unisono.engine.process.alive import start_ticks
from unisono.schedule import Hosts
from unisono.hosts.sentinel.start import Sentinel
state, name, other = sys.argv[1], sys.argv[2], int(sys.argv[3])
hosts, arena = Hosts.parse("2+1"), Arena.create(3, Config(heap_bytes=1 << 20))
ranks = {rank: (pid, start_ticks(pid)) for rank, pid in enumerate((os.getpid(), other))}
sentinel = Sentinel(arena)
address = sentinel.listen(name, "127.0.0.1")
if state == "serves":
    sentinel.serve(hosts, 0, ranks, [address, ("127.0.0.1", 9)], bytes(32), 1.5)
else:
    sentinel._process.wait()
print(arena.fd, flush=True)
signal.pause()
"""


def start_leader(state: str, name: str) -> tuple[subprocess.Popen[str], Arena]:
    """A rank 0 that has started a sentinel for itself and this process, and the arena."""
    command = [sys.executable, "-c", LEADER, state, name, str(os.getpid())]
    leader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    fd = int(leader.stdout.readline())
    return leader, Arena.attach(os.open(f"/proc/{leader.pid}/fd/{fd}", os.O_RDWR))


def test_sentinel_ends_with_its_last_rank() -> None:
    """Though the other host is not there, so that it can say goodbye to nobody."""
    name = secrets.token_hex(8)
    leader, arena = start_leader("serves", name)
    far = Far(arena, Hosts.parse("2+1"), 1, name, 1.5)
    sentinel = os.pidfd_open(sentinel_of(far))
    with leader:
        leader.kill()
    until(lambda: far.left(0) == (DepartureKind.DIED, "was killed by signal 9 (SIGKILL)"))
    assert arena.board(0).gone == far.left(0)
    assert not select.select([sentinel], [], [], 0)[0]
    far.close()
    arena.close()
    assert select.select([sentinel], [], [], 20)[0]
    os.close(sentinel)


def test_idle_sentinel_ends_with_its_leader() -> None:
    leader, arena = start_leader("alone", secrets.token_hex(8))
    (sentinel,) = (pid for pid in psutil.pids() if holds(pid, arena.fd) and pid not in (leader.pid, os.getpid()))
    ended = os.pidfd_open(sentinel)
    with leader:
        leader.kill()
    arena.close()
    assert select.select([ended], [], [], 20)[0]
    os.close(ended)


def holds(pid: int, fd: int) -> bool:
    """Does a process have a descriptor of this process's file?"""
    found = list[bool]()
    with suppress(OSError):
        for one in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # it has been closed meanwhile
                found.append(os.path.samestat(os.stat(f"/proc/{pid}/fd/{one}"), os.fstat(fd)))
    return any(found)


@pytest.fixture
def sentinels_first(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """sentinels_first(code): each sentinel that this process starts runs this code before its own."""
    boot = start._BOOT

    def first(code: str) -> None:
        monkeypatch.setattr(start, "_BOOT", boot.replace("main(int", f"{code}; main(int"))

    return first


def begin(*, early: bool = False) -> tuple[Arena, Far]:
    """A host of this process alone, and its connection to the sentinel, made early: before that serves."""
    arena, hosts, name = Arena.create(2, Config(heap_bytes=1 << 20)), Hosts.parse("1+1"), secrets.token_hex(8)
    sentinel = Sentinel(arena)
    address = sentinel.listen(name, "127.0.0.1")
    far = Far(arena, hosts, 0, name, 1.5) if early else None
    with suppress(InternalError):  # it may have failed already
        sentinel.serve(hosts, 0, {0: (os.getpid(), start_ticks(os.getpid()))}, [address] * 2, bytes(32), 1.5)
    return arena, far or Far(arena, hosts, 0, name, 1.5)


def test_leaving_waits_for_the_sentinel(sentinels_first: Callable[[str], None], tmp_path: Path) -> None:
    """A sentinel takes in living processes only: it would not read what a rank said that has ended."""
    os.mkfifo(gate := tmp_path / "opened when it may start")
    sentinels_first(f"open({str(gate)!r})")
    arena, far = begin()
    assert not far.sentinel_pid
    threading.Timer(0.1, gate.write_text, [""]).start()
    far.close()
    assert far.sentinel_pid
    arena.close()


def test_failed_start_is_reported(sentinels_first: Callable[[str], None], capfd: pytest.CaptureFixture[str]) -> None:
    """The rank has connected before the sentinel could say so."""
    sentinels_first("raise ImportError('no such file')")
    arena, far = begin(early=True)
    until(lambda: far.left(1) is not None)
    assert "its sentinel has not started: standard error shows why" in str(far.cut_off)
    assert "no such file" in capfd.readouterr().err
    far.close()
    arena.close()


def test_little_room_for_datagrams_is_told() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        start._make_room(udp, 8)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        with pytest.warns(RuntimeWarning, match=r"Set net.core.rmem_max to \d+ or more"):
            start._make_room(udp, 10_000)
        assert udp.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > 200_000


MOST_MODULES = 24  # ours; each costs the start of a job over hosts a third of a millisecond to a millisecond
NOT_NEEDED = {
    "_pickle", "ast", "dataclasses", "datetime", "inspect", "ipaddress", "numba", "numpy", "pathlib", "pickle",
    "platform", "subprocess", "threading", "torch", "traceback", "urllib",
}  # fmt: skip
"""Modules that would take a sentinel a millisecond to fourteen to import."""


@pytest.mark.cold
def test_sentinel_imports_few_modules() -> None:
    code = f"import sys; sys.path[:] = {sys.path}; import unisono.hosts.sentinel.main; print(*sys.modules)"
    names = run_python("-I", "-S", "-c", code, check=True).stdout.split()
    assert not NOT_NEEDED & {*names}
    ours = [name for name in names if name.startswith("unisono")]
    assert len(ours) <= MOST_MODULES, ours


ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
    sock.settimeout(20)
    sock.connect(chr(0) + sys.argv[1])
    try:
        sock.send(b'["register", 7, 4096, [0, 1]]')
        print(sock.recv(100))
    except ConnectionError:
        print(b"")
"""


def goes_on(fake: FakeHosts) -> None:
    """The sentinels still do what they are there for."""
    for host, far in enumerate(fake.far):
        fake.refresh(host)
        assert far.cut_off is None


def test_other_processes_are_disconnected() -> None:
    with FakeHosts("2+1") as fake:
        fake.sleepers[1].kill()
        until(lambda: fake.far[0].left(1) is not None)  # there is something to be heard
        done = run_python("-c", ASK, fake.names[0], check=True)
        assert done.stdout == "b''\n"
        goes_on(fake)


@pytest.mark.parametrize(
    "said",
    [b"{", b"[" * 50_000, b"x" * 140_000, b'["register", 7]', b'["register", 9, 12345, [0, 1]]',
     b'["register", 9, 4096, [0, "x"]]', b'["register", 9, 1e400, [0]]', b'["ask", -1, 4]',
     b'["wake", 18446744073709551616]'],
    ids=lambda said: said[:30].decode(),
)  # fmt: skip
def test_invalid_requests_are_disconnected(said: bytes) -> None:
    with FakeHosts("1+1") as fake:
        far = Far(fake.arenas[0], fake.hosts, 0, fake.names[0], 1.5)
        far._socket.send(said)
        until(lambda: "hung up" in str(far.cut_off))
        far.close()
        goes_on(fake)


def test_datagrams_of_strangers_change_nothing() -> None:
    rng = random.Random(3)
    with FakeHosts("1+1") as fake, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for length in (0, 1, 15, 16, 40, 1000, 60_001, 65_000):
            for _ in range(20):
                stranger.sendto(rng.randbytes(length), fake.addresses[0])
        goes_on(fake)


def test_sentinel_listens_at_the_data_address() -> None:
    with FakeHosts("1+1") as fake:
        for host, port in fake.addresses:
            assert host == "127.0.0.1"
            lines = [line.split()[1] for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
            assert [line for line in lines if line.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_wake_pushes_without_a_ticket() -> None:
    with FakeHosts("1+1+2") as fake:
        fake.refresh(0)
        fake.arenas[0].board(0).set_gave_up(GivenUp(9, False, frozenset({2}), "tired"))
        fake.far[0].wake(WORLD)
        for arena in fake.arenas:  # also on the rank's own host, where other ranks may wait
            until(lambda arena=arena: arena.news.value)
            assert arena.board(0).gave_up == GivenUp(9, False, frozenset({2}), "tired")


def test_deaths_are_counted_on_each_host() -> None:
    with FakeHosts("1+3") as fake:
        fake.refresh(0)
        for count, rank in enumerate((2, 3), 1):
            fake.sleepers[rank].kill()
            for arena in fake.arenas:
                until(lambda arena=arena, count=count: arena.news.value >= count)
                assert arena.board(rank).gone is not None


def test_leaving_with_an_unread_answer() -> None:
    """The kernel says so as an error, before what the rank has said at last."""
    with FakeHosts("1+1") as fake:
        fake.far[0].ask(WORLD)
        assert select.select([fake.far[0]._socket], [], [], 20.0)[0]
        send_with_spare(fake.far[0], signal.SIGSTOP)
        fake.far[0].close()
        send_with_spare(fake.far[0], signal.SIGCONT)
        until(lambda: fake.far[1].left(0) is not None, 20.0)
        assert fake.far[1].left(0).how is DepartureKind.LEFT


def test_stopped_host_learns_that_others_went_on() -> None:
    with FakeHosts("1+1+1") as fake:
        fake.refresh(2)
        send_with_spare(fake.far[2], signal.SIGSTOP)
        until(lambda: fake.lost(0) == {2})
        send_with_spare(fake.far[2], signal.SIGCONT)
        until(lambda: "the others go on without it" in str(fake.far[2].cut_off))
        assert fake.far[0].cut_off is fake.far[1].cut_off is None
        assert not fake.lost(2)
        until(lambda: all(fake.arenas[2].board(rank).gone for rank in (0, 1)))
        assert fake.arenas[2].board(1).gone == (DepartureKind.DIED, "is on host b (rank 1)")


def test_crash_of_the_sentinel_is_reported(sentinels_first: Callable[[str], None]) -> None:
    """Nobody reads the standard error of a sentinel."""
    copies = "from unisono.hosts.sentinel.board_replicas import Copies"
    sentinels_first(f"{copies}; Copies.push = lambda *_: {{}}['no such push']")
    with FakeHosts("1+1") as fake:
        fake.refresh(0)
        fake.far[0].wake(WORLD)
        until(lambda: fake.far[0].left(1) is not None)
        pid = fake.far[0].sentinel_pid
        words = f"its sentinel (process {pid}) has crashed: KeyError: 'no such push' (<string>:1 in "
        assert words in str(fake.far[0].left(1))
        assert "main.py:" in str(fake.far[0].cut_off)
        until(lambda: not fake.lives(0))


def test_a_child_of_a_rank_does_not_speak_for_it() -> None:
    with FakeHosts("1+1") as fake:
        if not (child := os.fork()):
            try:
                fake.far[1].close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        fake.refresh(1)
        assert fake.far[0].left(1) is None


def test_sentinel_ignores_termination_signals() -> None:
    with FakeHosts("1+1") as fake:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.pidfd_send_signal(fake.pidfds[0], number)
        fake.refresh(0)
        fake.refresh(1)


def test_parents_report_of_an_end_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena.create(3, Config(heap_bytes=1 << 20))
    assert arena.map is not None
    regions = Regions(arena.map, arena.start, arena.size)
    monkeypatch.setattr("unisono.hosts.sentinel.main.exit_status", lambda *_: None)
    for rank in (0, 1):
        arena.board(rank).parent_tells_end = 1
    watching = Watching(dict.fromkeys(range(3), (os.getpid(), 1)), regions)  # it has started at another time
    assert watching.ended(5.0) == [Ended(2, "died")]
    assert watching.impatient
    arena.board(1).set_gone(DepartureKind.DIED, "was shot")
    assert watching.ended(5.9) == [Ended(1, "died")]  # the board's words count
    assert watching.ended(5.9) == []
    assert watching.ended(6.1) == [Ended(0, "died")]
    assert not watching.impatient
    arena.close()
