"""Nothing is left behind: no process, descriptor or thread, however the end came."""

import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from unisono import all_reduce, get_rank, init, run, world
from unisono.errors import NotInitialized, RankFailed

PARENT = """
import os, signal, threading
from unisono import world
w = world(3)
print(os.getpid(), *set(w.run(os.getppid)), *w.run(os.getpid), flush=True)
{before}
print("running", flush=True)
w.run(lambda: threading.Event().wait())
"""


class Started:
    """A parent script whose ranks run for ever, and a watch on each of its processes."""

    def __init__(self, before: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT.format(before=before)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pids = [int(word) for word in self.process.stdout.readline().split()]
        assert len(self.pids) == 5, self.process.stderr.read()
        self.watches = [os.pidfd_open(pid) for pid in self.pids[1:]]
        assert self.process.stdout.readline() == "running\n"

    def all_end(self, within_s: float = 10.0) -> bool:
        deadline = time.monotonic() + within_s
        left = set(self.watches)
        poller = select.poll()
        for watch in left:
            poller.register(watch, select.POLLIN)
        while left and time.monotonic() < deadline:
            for watch, _ in poller.poll(100):
                poller.unregister(watch)
                left.discard(watch)
        return not left

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate(timeout=30)
        for pid, watch in zip(self.pids[1:], self.watches, strict=True):
            if not select.select([watch], [], [], 0)[0]:
                os.kill(pid, signal.SIGKILL)
            os.close(watch)


def test_a_killed_parent_leaves_no_process():
    with Started() as started:
        started.process.kill()
        assert started.all_end()


def test_a_killed_parent_leaves_no_process_even_if_a_forked_child_holds_its_sockets():
    # Forked behind Python's back, so that nothing is closed in it. It ends when the test closes its standard input.
    fork = "import ctypes\nif ctypes.PyDLL(None).fork() == 0:\n    os.close(1); os.close(2); os.read(0, 1); os._exit(0)"
    with Started(fork) as started:
        started.process.kill()
        assert started.all_end()


def test_a_killed_server_takes_its_ranks_along():
    with Started() as started:
        os.kill(started.pids[1], signal.SIGKILL)
        assert started.all_end()
        _, said = started.process.communicate(timeout=60)
        assert "was killed together with the process that ranks are forked from" in said


def test_ctrl_c_stops_the_ranks_and_reaches_the_caller():
    with Started() as started:
        started.process.send_signal(signal.SIGINT)
        assert started.all_end()
        _, said = started.process.communicate(timeout=60)
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert started.process.returncode == -signal.SIGINT


def test_a_terminated_parent_leaves_no_process():
    with Started() as started:
        started.process.terminate()
        assert started.all_end()


def census() -> tuple[int, int, int]:
    """Descriptors, threads and children of this process."""
    gc.collect()
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(children.read().split())


def test_twenty_runs_leak_nothing():
    run(int, 2)
    before = census()
    for _ in range(20):
        run(int, 2)
    assert census() == before


def test_failures_leak_nothing():
    def fail():
        return 1 // init().rank

    run(int, 2)
    before = census()
    for _ in range(3):
        with pytest.raises(RankFailed):
            run(fail, 2)
        with world(2) as w:
            w.run(int)
            with pytest.raises(RankFailed):
                w.run(fail)
    assert census() == before


def test_a_forgotten_world_ends_with_its_object():
    run(int, 2)
    before = census()
    w = world(2)
    watches = [os.pidfd_open(pid) for pid in w.run(os.getpid)]
    del w
    gc.collect()
    for watch in watches:
        assert select.select([watch], [], [], 10)[0]
        os.close(watch)
    assert census() == before


def test_nothing_is_said_at_exit():
    code = "from unisono import run, world\nw = world(2)\nw.run(int)\nrun(int, 2)"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")


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


def test_a_forked_child_leaves_the_group_to_its_parent():
    def fork_and_go_on(rank_that_forks):
        tensor = torch.full((3,), float(get_rank()))
        all_reduce(tensor)  # so that the child inherits a plan
        if get_rank() == rank_that_forks:
            child = os.fork()
            if child == 0:
                try:
                    all_reduce(tensor)
                except NotInitialized:
                    os._exit(7)
                os._exit(8)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        all_reduce(tensor)
        return tensor[0].item()

    assert run(fork_and_go_on, 3, (1,), timeout_s=30) == [9.0] * 3
