"""Nothing is left behind: no process, descriptor or thread, however the end came."""

import gc
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import PIPE
from typing import Any

import pytest

from unisono import get_rank, run, world
from unisono.base.errors import RankFailed

PARENT = """
import ctypes, os, signal, threading
import unisono
w = unisono.world(3)
print(*set(w.run(os.getppid)), *w.run(os.getpid), flush=True)
{before}
def stay():
    print("running", flush=True)
    {stay}
w.run(stay)
"""

STAYS = {
    "waits": "threading.Event().wait()",
    "computes": "\n    while True: pass",
    "in C": "ctypes.PyDLL(None).sleep(1000)",
    "in a call": "unisono.barrier() if unisono.get_rank() else threading.Event().wait()",
    "ignores it": "signal.signal(signal.SIGINT, signal.SIG_IGN)\n    threading.Event().wait()",
}


@contextmanager
def started(before: str = "", stay: str = STAYS["waits"], terminal: int = PIPE) -> Iterator[tuple[Any, list[int]]]:
    """A parent script whose ranks run for ever, and a pidfd of each of its processes."""
    words = [sys.executable, "-c", PARENT.format(before=before, stay=stay)]
    with subprocess.Popen(words, stdin=terminal, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True) as parent:
        watches = [os.pidfd_open(int(word)) for word in parent.stdout.readline().split()]
        try:
            assert len(watches) == 4
            assert [parent.stdout.readline() for _ in range(3)] == ["running\n"] * 3
            yield parent, watches
        finally:
            parent.kill()
            for watch in watches:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(watch, signal.SIGKILL)
                os.close(watch)


def end(watches: list[int], within_s: float = 10.0) -> bool:
    """Do all these processes end?"""
    return all(select.select([watch], [], [], within_s)[0] for watch in watches)


FORKS = "import ctypes\nif ctypes.PyDLL(None).fork() == 0:\n    os.close(1); os.close(2); os.read(0, 1); os._exit(0)"


@pytest.mark.parametrize(("before", "number"), [("", signal.SIGKILL), ("", signal.SIGTERM), (FORKS, signal.SIGKILL)])
def test_a_killed_parent_leaves_no_process(before, number):
    """Nor if it has forked behind Python's back, so that nothing is closed in the child. This ends with its input."""
    with started(before) as (parent, watches):
        parent.send_signal(number)
        assert end(watches)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("stay", STAYS)
def test_ctrl_c_ends_caller_and_ranks(stay):
    """On a terminal, which sends SIGINT to all processes of its foreground."""
    terminal, slave = os.openpty()
    try:
        # The first terminal that a leader of a session opens is the one that controls it.
        with started("os.open(os.ttyname(0), os.O_RDWR)", STAYS[stay], slave) as (parent, watches):
            os.write(terminal, b"\x03")
            _, said = parent.communicate(timeout=60)
            assert end(watches, 0.0)
            assert said.rstrip().endswith("KeyboardInterrupt")
            assert parent.returncode == -signal.SIGINT
    finally:
        os.close(terminal)
        os.close(slave)


TORCH_THAT_IMPORTS_FOR_EVER = """
import os, sys, threading
print(os.getpid(), file=sys.stderr, flush=True)
threading.Event().wait()
"""

TORCH_WITH_A_LONG_END = """
import atexit, sys, threading
atexit.register(threading.Event().wait)
sys.path.remove({folder!r})
del sys.modules["torch"]
import torch
"""

PATIENT = """
import sys
from unisono import world
from unisono.ranks.launch import fork_client
fork_client._LEAVE_S = 600.0
sys.path.insert(0, {folder!r})
w = world(2)
w.run(int)
"""


@pytest.mark.cold
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_parent_ends_while_server_imports(tmp_path, number):
    (tmp_path / "torch.py").write_text(TORCH_THAT_IMPORTS_FOR_EVER)
    code = PATIENT.format(folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as parent:
        server = int(parent.stderr.readline())
        watch = os.pidfd_open(server)
        parent.send_signal(number)
        ended = end([watch])
        os.close(watch)
        if not ended:
            os.kill(server, signal.SIGKILL)
        assert ended
        _, said = parent.communicate(timeout=60)
        assert number == signal.SIGKILL or said.rstrip().endswith("KeyboardInterrupt")
        assert parent.returncode == -number


def test_server_skips_exit_handlers(tmp_path):
    (tmp_path / "torch.py").write_text(TORCH_WITH_A_LONG_END.format(folder=str(tmp_path)))
    code = PATIENT.format(folder=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], timeout=100, check=True)


def census() -> tuple[int, int, int]:
    """Descriptors, threads and children of this process."""
    gc.collect()
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(children.read().split())


def test_ended_worlds_leak_nothing():
    """After failures, and when a world is forgotten."""

    def fail():
        return 1 // get_rank()

    run(int, 2)
    before = census()
    for _ in range(3):
        with pytest.raises(RankFailed):
            run(fail, 2)
        with world(2) as w:
            w.run(int)
            with pytest.raises(RankFailed):
                w.run(fail)
        assert isinstance(run(lambda: get_rank() and os._exit(3), 2, return_exceptions=True)[1], RankFailed)
    w = world(2)
    watches = [os.pidfd_open(pid) for pid in w.run(os.getpid)]
    del w
    gc.collect()
    assert end(watches)
    for watch in watches:
        os.close(watch)
    # There may be less: threads of earlier tests end in their own time.
    assert all(now <= then for now, then in zip(census(), before, strict=True)), (census(), before)


def test_the_server_has_no_threads_and_no_zombies():
    with world(2) as w:
        (server,) = set(w.run(os.getppid))

        def children():
            with open(f"/proc/{server}/task/{server}/children") as file:
                return set(map(int, file.read().split()))

        before = children()  # other tests may have ranks there, too
        assert set(w.pids) <= before
        run(int, 3)
        assert children() == before
        assert os.listdir(f"/proc/{server}/task") == [str(server)]
