"""Every way to end a rank: the others name it, and with return_exceptions they go on."""

import atexit
import os
import select
import signal
import subprocess
import threading

import pytest

from tests.support.waiting import until
from unisono import RankFailed, WaitTimeout, get_rank, init, run, world
from unisono.ranks.launch import processes


def test_nobody_is_hurried_by_a_death(monkeypatch):
    """The parent has heard of it: who has died is told by its parent."""
    monkeypatch.setattr(processes, "GRACE_S", 0.0)

    def go_on():
        group = init()
        if group.rank == 1:
            os._exit(3)
        until(lambda: group.engine.arena.board(1).gone is not None)
        return group.rank

    first, failed, last = run(go_on, 3, return_exceptions=True)
    assert (first, last) == (0, 2)
    assert "exited with code 3" in str(failed)


def test_time_is_up_for_survivors_too():
    def late():
        if get_rank() == 0:
            threading.Event().wait()
        return get_rank() // (get_rank() - 1)

    stuck, failed, value = run(late, 3, timeout_s=2.0, return_exceptions=True)
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
        atexit.register((tmp_path / f"{get_rank()}").touch)
        return os._exit(3) if get_rank() == 1 else get_rank()

    with world(3, return_exceptions=True) as w:
        first, failed, last = w.run(leave_a_note_at_the_end)
        assert (first, last) == (0, 2)
        assert "exited with code 3" in str(failed)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]
        assert w.pids == []
        assert w.run(get_rank) == [0, 1, 2]
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
