"""Every way to end a rank: the others name it, and with return_exceptions they go on."""

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading

import pytest
import torch

import unisono
from unisono import PeerGone, RankFailed, WaitTimeout, init, run, world
from unisono.ranks.launch import processes, worlds


def from_a_thread():
    threading.Thread(target=os._exit, args=(5,)).start()
    threading.Event().wait()


def boom():
    raise ValueError("boom")


def become_another_program():
    os.execvp("sleep", ["sleep", "1000"])  # noqa: S606  that is the point


WAYS = {
    "_exit": (lambda: os._exit(3), "exited with code 3"),
    "_exit, well": (lambda: os._exit(0), "exited with code 0"),
    "_exit of a thread": (from_a_thread, "exited with code 5"),
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by signal 9 (SIGKILL)"),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), "was killed by signal 15 (SIGTERM)"),
    "SIGSEGV": (lambda: ctypes.string_at(0), "was killed by signal 11 (SIGSEGV)"),
    "abort": (os.abort, "was killed by signal 6 (SIGABRT)"),
    "real-time signal": (lambda: os.kill(os.getpid(), signal.SIGRTMAX), "was killed by signal 64 (SIGRTMAX)"),
    "sys.exit": (lambda: sys.exit(4), "raised SystemExit: 4"),
    "raise": (boom, "raised ValueError: boom"),
    "exec": (become_another_program, "runs another program now, or has closed its descriptors"),
}


def outlive(victim, end):
    """What a survivor has read of the victim, and a sum that the survivors make without their group afterwards."""
    group = init()
    tensor = torch.full((5,), 10.0**group.rank)
    unisono.all_reduce(tensor)
    if group.rank == victim:
        end()
    with pytest.raises(PeerGone) as caught:
        unisono.all_reduce(tensor)
    return group.rank, caught.value.rank, caught.value.how.words, tensor[0].item()


@pytest.mark.sampled(most=6)
@pytest.mark.parametrize("way", WAYS)
def test_the_others_name_who_has_ended_and_how(way):
    end, words = WAYS[way]
    first, failed, last = run(outlive, 3, (1, end), timeout_s=60, return_exceptions=True)
    assert (first, last) == ((0, 1, words, 111.0), (2, 1, words, 111.0))
    assert isinstance(failed, RankFailed)
    assert (failed.rank, failed.waiting) == (1, {})
    assert words.removeprefix("raised ") in str(failed)
    assert words.removeprefix("raised ") in f"{type(failed.__cause__).__name__}: {failed.__cause__}"


def test_nobody_is_hurried_by_a_failure(monkeypatch, tmp_path):
    heard = tmp_path / "heard"

    class Listener(processes.RankProcesses):
        def _add(self, *report):
            super()._add(*report)
            heard.touch()

    def go_on():
        if init().rank == 1:
            raise LookupError("lost")
        while not heard.exists():
            pass
        return init().rank

    monkeypatch.setattr(processes, "GRACE_S", 0.0)
    monkeypatch.setattr(worlds, "RankProcesses", Listener)
    first, failed, last = run(go_on, 3, return_exceptions=True)
    assert (first, last) == (0, 2)
    assert isinstance(failed.__cause__, LookupError)


def test_time_is_up_for_survivors_too():
    def late():
        if init().rank == 0:
            threading.Event().wait()
        return init().rank // (init().rank - 1)

    stuck, failed, value = run(late, 3, timeout_s=0.5, return_exceptions=True)
    assert isinstance(stuck, RankFailed)
    assert isinstance(stuck, WaitTimeout)
    assert stuck.missing == (0,)
    assert "in late" in str(stuck)
    assert isinstance(failed.__cause__, ZeroDivisionError)
    assert value == 2


def test_survivors_leave_before_new_ranks_come(monkeypatch, tmp_path):
    """Also where nobody is given time: who has died is not waited for."""
    monkeypatch.setattr(processes, "GRACE_S", 600.0)

    def leave_a_note_at_the_end():
        import atexit

        rank = init().rank
        atexit.register((tmp_path / str(rank)).touch)
        return os._exit(3) if rank == 1 else rank

    with world(3, return_exceptions=True) as w:
        first, failed, last = w.run(leave_a_note_at_the_end)
        assert (first, last) == (0, 2)
        assert "exited with code 3" in str(failed)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]
        assert w.pids == []
        assert w.run(lambda: init().rank) == [0, 1, 2]
        before = w.pids
        assert w.run(os.getpid) == before


@pytest.mark.parametrize("number", [0, signal.SIGKILL], ids=["ends well", "is killed"])
def test_children_die_with_a_rank_that_is_killed(tmp_path, number):
    fifo = tmp_path / "held open by what the rank has started"
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    def start():
        with open(fifo, "wb") as output:
            child = subprocess.Popen(["sleep", "1000"], stdout=output)
        os.kill(os.getpid(), number)
        return child.pid

    (outcome,) = run(start, 1, return_exceptions=True)
    if number:
        assert select.select([end], [], [], 10)[0]
        assert isinstance(outcome, RankFailed)
    else:
        assert not select.select([end], [], [], 0)[0]
        os.kill(outcome, signal.SIGKILL)
    os.close(end)
