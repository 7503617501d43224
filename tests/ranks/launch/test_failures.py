"""What a parent hears when ranks raise, die or get stuck."""

import _thread
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

import unisono
from unisono import init, run, world
from unisono.base.errors import ArgumentError, MismatchError, PeerGone, RankFailed, WaitTimeout
from unisono.ranks.launch import processes

PACKAGE = os.path.dirname(unisono.__file__)


class Unpicklable(Exception):
    def __init__(self, left, right):
        super().__init__(f"{left} of {right}")


def only(rank, act):
    """This rank acts; the others wait for it as a collective would."""
    group = init()
    if group.rank == rank:
        act()
    board, deadline = group.host.arena.board(rank), time.monotonic() + 30
    while not board.gone:
        if time.monotonic() > deadline:
            raise AssertionError("nobody told")
    raise PeerGone(rank, board.pid, board.gone, group.rank, "a call")


def boom():
    raise ValueError("boom")


def forever():
    threading.Event().wait()


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 0.3)


def test_an_exception_names_its_rank_and_is_the_cause():
    with pytest.raises(RankFailed) as caught:
        run(only, 3, args=(1, boom))
    error = caught.value
    assert error.rank == 1
    assert isinstance(error.__cause__, ValueError)
    assert "in boom" in error.traceback
    assert f"{PACKAGE}/local_world/" not in error.traceback
    assert sorted(error.waiting) == [0, 2]
    assert "raised ValueError: boom while rank 2 waited" in error.waiting[2]


def test_a_mismatch_shows_the_users_lines_only():
    with pytest.raises(MismatchError) as caught:
        run(mismatch, 2)
    assert isinstance(caught.value, RankFailed)
    assert "in mismatch" in caught.value.traceback
    assert f"{PACKAGE}/" not in caught.value.traceback


def mismatch():
    unisono.all_reduce(torch.zeros(3 + init().rank))


def test_exceptions_of_main_and_system_exit():
    class Mine(Exception):
        pass

    def leave():
        raise SystemExit(3)

    def mine():
        raise Mine("own class")

    with pytest.raises(RankFailed) as caught:
        run(mine, 1)
    assert type(caught.value.__cause__) is Mine
    with pytest.raises(RankFailed, match="SystemExit: 3"):
        run(leave, 1)


def test_an_exception_that_cannot_be_carried_is_described():
    def bad():
        raise Unpicklable(1, 2)

    with pytest.raises(RankFailed, match="could not be sent: TypeError") as caught:
        run(bad, 1)
    assert "Unpicklable: 1 of 2" in str(caught.value.__cause__)


def test_a_result_that_cannot_be_pickled_names_rank_and_type():
    with pytest.raises(ArgumentError, match="result of rank 1, of type lock, cannot be sent"):
        run(lambda: _thread.allocate_lock() if init().rank == 1 else 0, 2)


def test_an_argument_that_the_ranks_cannot_read_is_their_error():
    class Grenade:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(RankFailed, match="invalid literal for int"):
        run(init, 2, args=(Grenade(),))


def test_a_rank_killed_between_two_runs_fails_the_next_one():
    with world(2) as w:
        w.run(init_rank)
        os.kill(w.pids[1], signal.SIGKILL)
        with pytest.raises(RankFailed) as caught:
            w.run(only, 1, int)
        assert caught.value.rank == 1
        assert w.run(init_rank) == [0, 1]


def init_rank():
    return init().rank


SERVERS_DEATH = """
import os, signal, threading
from unisono import RankFailed
from unisono import init, world
with world(2) as w:
    (server,) = set(w.run(os.getppid))
    try:
        w.run(lambda: os.kill(server, signal.SIGKILL) if init().rank == 0 else threading.Event().wait())
    except RankFailed as error:
        print("killed together with" in str(error))
    print(w.run(lambda: init().rank))
"""


def test_the_servers_death_is_an_error_and_the_next_run_starts_another():
    # In a process of its own: other tests have ranks of this one's server.
    done = subprocess.run(
        [sys.executable, "-c", SERVERS_DEATH], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split("\n")[:2] == ["True", "[0, 1]"], done.stderr


def test_stuck_ranks_are_killed_and_show_where_they_were(short_grace):
    with pytest.raises(RankFailed) as caught:
        run(lambda: (unisono.barrier(), boom() if init().rank == 1 else forever()), 3)
    assert caught.value.rank == 1
    for rank in (0, 2):
        assert "in forever" in caught.value.waiting[rank]
        assert f"{PACKAGE}/local_world/" not in caught.value.waiting[rank]


def test_a_stopped_rank_is_killed_too(short_grace):
    with pytest.raises(RankFailed) as caught:
        run(lambda: (unisono.barrier(), boom() if init().rank == 1 else os.kill(os.getpid(), signal.SIGSTOP)), 2)
    assert "does not say where it is: its process takes no signals now" in caught.value.waiting[0]


def test_the_deadline_names_who_is_late_and_where():
    start = time.monotonic()
    with pytest.raises(WaitTimeout) as caught:
        run(lambda: init().rank == 1 or forever(), 3, timeout_s=0.5)
    assert caught.value.missing == (0, 2)
    assert str(caught.value).count("in forever") == 2
    assert time.monotonic() - start < 60


def test_source_lines_without_a_file_are_shown():
    import linecache

    source = "def cell():\n    return 1 // 0  # in a notebook\n"
    linecache.cache["<cell 1>"] = (len(source), None, source.splitlines(keepends=True), "<cell 1>")
    names = {"__name__": "__main__"}
    exec(compile(source, "<cell 1>", "exec"), names)  # noqa: S102  what a notebook does
    try:
        with pytest.raises(RankFailed, match="# in a notebook"):
            run(names["cell"], 1)
    finally:
        del linecache.cache["<cell 1>"]


def test_tensors_in_exceptions_are_carried():
    def raise_with_tensor():
        raise ValueError(torch.arange(3))

    with pytest.raises(RankFailed) as caught:
        run(raise_with_tensor, 1)
    assert caught.value.__cause__.args[0].tolist() == [0, 1, 2]
