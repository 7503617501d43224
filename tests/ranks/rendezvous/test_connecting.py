"""Ranks of several hosts connect: who ends, or gives up, meanwhile is named by all others, and not waited for."""

import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.ports import free_port
from tests.support.programs import Python, place, run_python

SCRIPT = """
import os, sys, time, unisono
from unisono.hosts.carriers.ucx import UcxCarrier
from unisono.ranks.group import world_over_hosts
rank, event, here, *late = int(os.environ["RANK"]), *sys.argv[1:]

def before_connecting(*_):
    sys.stdout.write("met\\n")
    sys.stdout.flush()
    if event == "interrupted":
        os.kill(os.getpid(), 2)
    if event == "late":
        raise unisono.WaitTimeout("init()", 1.0, (2,), rank)
    time.sleep(1000)

def late_at_the_store(*args, notice_of=world_over_hosts._Connecting._notice_of):
    time.sleep(0.4)
    return notice_of(*args)

if f"{rank}" in late:
    world_over_hosts._Connecting._notice_of = late_at_the_store
if event == "no UCX":
    sys.modules["unisono.hosts.carriers.ucx_library"]._place = lambda: "/nowhere"
elif rank == int(here):
    if event == "early":
        world_over_hosts._Connecting.join_sentinels = before_connecting
    UcxCarrier.__init__ = before_connecting
try:
    unisono.init(timeout_s=60)
except BaseException as error:
    print(type(error).__name__, error)
"""


def three(python: Python, *arguments: object, hosts: str = "012") -> list[subprocess.Popen[str]]:
    """Ranks, by default each on a host of its own."""
    port = free_port()
    places = (place(rank, 3, port) | {"UNISONO_HOST_ID": host} for rank, host in enumerate(hosts))
    return [python("-c", SCRIPT, *arguments, **variables) for variables in places]


@pytest.mark.parametrize(
    ("event", "doomed", "hosts"),
    [("killed", 1, "012"), pytest.param("killed", 2, "012", marks=pytest.mark.long), ("early", 1, "011")],
)
def test_killed_rank_is_named_by_all(python: Python, event: str, doomed: int, hosts: str) -> None:
    """Nobody waits out the limit of a minute. Who dies early, before sentinels, is seen by the rank beside it."""
    for rank, said in survivors(three(python, event, doomed, hosts=hosts), doomed):
        assert said.startswith(f"PeerGone rank {doomed} ")
        assert f" was killed by signal 9 (SIGKILL) while rank {rank} waited for it in init()" in said
        assert "pid 0" not in said


def test_killed_rank_alone_on_its_host_is_named(python: Python) -> None:
    """No other rank sees that: the sentinel of its host does not start."""
    for rank, said in survivors(three(python, "early", 1), 1):
        waited = re.match(rf"WaitTimeout rank {rank} waited (\S+) s in init\(\) for rank 1\.", said)
        assert waited, said
        assert float(waited[1]) < 30


def survivors(ranks: list[subprocess.Popen[str]], doomed: int) -> Iterator[tuple[int, str]]:
    """Kill a rank that has met the others; what these say."""
    assert ranks[doomed].stdout.readline() == "met\n"
    ranks[doomed].send_signal(signal.SIGKILL)
    yield from ((rank, one.communicate(timeout=100)[0]) for rank, one in enumerate(ranks) if rank != doomed)


def test_rank_that_gives_up_is_named_by_all(python: Python) -> None:
    """Rank 2 reads at the store, which rank 0's process runs, when rank 0 knows already."""
    all_of_them = three(python, "interrupted", 1, 2)
    said = [process.communicate(timeout=100)[0] for process in all_of_them]
    assert said[1].startswith("met\nKeyboardInterrupt")
    for rank in (0, 2):
        assert said[rank].startswith("PeerGone rank 1 "), said
        assert f" gave up init(): KeyboardInterrupt while rank {rank} waited for it in init()" in said[rank]


def test_who_has_waited_for_too_long_is_not_named(python: Python) -> None:
    """Rank 1 gives up, as rank 2 does not come."""
    said = [(*process.communicate(timeout=100), process.returncode) for process in three(python, "late", 1)]
    assert said[1][0].startswith("met\nWaitTimeout rank 1 waited 1 s in init() for rank 2")
    for rank in (0, 2):
        assert said[rank][0].startswith(f"WaitTimeout rank {rank} waited "), said
        assert " in init() for rank 2." in said[rank][0]


def test_missing_ucx_is_told_by_each_rank(python: Python) -> None:
    """Also by rank 2, which comes late: under Gloo's name, all then have a group of Gloo's."""
    for process in three(python, "no UCX", 0, 2):
        assert process.communicate(timeout=100)[0].startswith("NoUcx ranks on several hosts send messages by UCX")


LEFT_BEHIND = """
import atexit, builtins, ctypes, sys, time
if "aborts" in sys.argv:  # before the imports: this function runs last
    atexit.register(ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev)
from datetime import timedelta
from torch.distributed import HashStore
from unisono.ranks.rendezvous.asked_store import Limited
store = HashStore()

def in_torch():
    store.wait(["key"], timedelta(seconds=100))

class EndsLate:
    def __del__(self, set=store.set, sleep=time.sleep):
        set("key", "")
        sleep(0.5)

builtins.ends_late = EndsLate()
try:
    Limited().call(in_torch, deadline=0.0)
except TimeoutError as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.cold
def test_thread_left_in_torch_aborts_no_exit() -> None:
    """It returns from torch while the interpreter shuts down."""
    done = run_python("-c", LEFT_BEHIND)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.cold
def test_abort_in_another_library_ends_a_process() -> None:
    """It calls `std::terminate` at exit, with a thread left behind in torch."""
    assert run_python("-c", LEFT_BEHIND, "aborts", timeout=60).returncode == -signal.SIGABRT


WORKS = """
import atexit, ctypes, time
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(b"/dev/zero", b"r"))
atexit.register(libc.fflush, file)  # before the imports: this function runs last, and needs the lock of the file
from unisono.ranks.rendezvous.asked_store import Limited
try:
    Limited().call(lambda: libc.fscanf(file, b"%*200000000c"), deadline=time.monotonic() + 0.05)
except TimeoutError as error:
    print(error)
"""


@pytest.mark.cold
def test_thread_left_behind_releases_its_locks() -> None:
    """It works when the program ends, and holds a lock that the exit needs."""
    done = run_python("-c", WORKS, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no answer\n", "")
