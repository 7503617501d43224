"""Sentinels as processes: how they start, what ranks learn from them, and strangers at their sockets."""

import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
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
    assert far.sentinel_pid == 0
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


SLOW_MODULES = {"ast", "dataclasses", "inspect", "numpy", "pathlib", "pickle", "subprocess", "torch", "urllib"}
"""Modules that would take a sentinel a millisecond to many to import."""


@pytest.mark.cold
def test_sentinel_imports_no_slow_module() -> None:
    code = f"import sys; sys.path[:] = {sys.path}; import unisono.hosts.sentinel.main; print(*sys.modules)"
    names = run_python("-I", "-S", "-c", code, check=True).stdout.split()
    assert not SLOW_MODULES & {*names}


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
    with FakeHosts("1+1") as fake, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rank:
        rank.connect(f"\0{fake.names[0]}")
        rank.send(said)
        until(lambda: b"hung up" in rank.recv(10_000))
        goes_on(fake)


def test_sentinel_listens_at_the_data_address() -> None:
    with FakeHosts("1+1") as fake:
        for host, port in fake.addresses:
            assert host == "127.0.0.1"
            lines = [line.split()[1] for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
            assert [line for line in lines if line.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_urgent_news_is_counted_on_each_host() -> None:
    """Also on a rank's own host, where other ranks may wait."""
    with FakeHosts("1+3") as fake:
        fake.refresh(0)
        last = GivenUp(9, False, frozenset({2}), "tired")
        fake.arenas[0].board(0).set_gave_up(last)
        fake.far[0].wake(WORLD)
        for arena in fake.arenas:
            until(lambda arena=arena: arena.news.value)
            assert arena.board(0).gave_up == last
        for count, rank in enumerate((2, 3), 2):
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


def test_idle_sentinel_leaves_its_processor_alone() -> None:
    with FakeHosts("1+1") as fake:
        goes_on(fake)
        sentinel = psutil.Process(sentinel_of(fake.far[0]))
        before = sum(sentinel.cpu_times()[:2])
        time.sleep(1.0)  # what it does in this time is what is tested
        assert sum(sentinel.cpu_times()[:2]) - before < 0.1


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
        pid = sentinel_of(fake.far[0])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
        goes_on(fake)
        assert fake.far[0].sentinel_pid == pid


def test_parents_report_of_an_end_is_awaited() -> None:
    arena = Arena.create(3, Config(heap_bytes=1 << 20))
    assert arena.map is not None
    regions = Regions(arena.map, arena.start, arena.size)
    for rank in (0, 1):
        arena.board(rank).parent_tells_end = 1
    watching = Watching(dict.fromkeys(range(3), (os.getpid(), 1)), regions)  # it has started at another time
    assert (watching.ended(5.0), watching.impatient) == ([Ended(2, "died")], True)
    arena.board(1).set_gone(DepartureKind.DIED, "was shot")
    assert watching.ended(5.9) == [Ended(1, "died")]  # the board's words count
    assert watching.ended(5.9) == []
    assert (watching.ended(6.1), watching.impatient) == ([Ended(0, "died")], False)
    arena.close()
