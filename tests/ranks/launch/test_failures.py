"""What a parent hears when ranks raise, die or get stuck: reports in, results or one exception out."""

import _thread
import atexit
import copy
import linecache
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import unisono
from tests.support.waiting import until
from unisono import get_rank, init, run, world
from unisono.base.errors import (
    ArgumentError,
    MismatchError,
    OutOfMemory,
    PeerGone,
    RankFailed,
    UnisonoError,
    UsageError,
    WaitTimeout,
)
from unisono.base.records import CallRecord
from unisono.engine.process.alive import start_ticks
from unisono.ranks.launch import processes
from unisono.ranks.launch.launch_messages import Report, pack, unpack
from unisono.ranks.launch.reports import RunTime, outcomes, rank_failed, results

PACKAGE = Path(unisono.__file__).parent


def failure(act, ranks=1, *args, **how):
    """The error of a run of this function."""
    with pytest.raises(RankFailed) as caught:
        run(act, ranks, args, **how)
    return caught.value


class Made:
    """An argument that each rank makes by this call when it reads it."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.fixture
def short_grace(monkeypatch):
    """After a failure, other ranks have only a moment to end on their own."""
    monkeypatch.setattr(processes, "GRACE_S", 0.3)


def only(rank, act):
    """This rank acts; the others wait for it in a call."""
    if get_rank() == rank:
        act()
    unisono.barrier()


def boom():
    raise ValueError("boom")


def forever():
    threading.Event().wait()


def test_exception_names_its_rank():
    error = failure(only, 3, 1, boom)
    assert error.rank == 1
    assert isinstance(error.__cause__, ValueError)
    assert "in boom" in error.traceback
    assert f"{PACKAGE}/" not in error.traceback
    assert sorted(error.waiting) == [0, 2]
    assert "raised ValueError: boom while rank 2 waited" in error.waiting[2]
    assert "in only" in error.waiting[2]
    assert f"{PACKAGE}/" not in error.waiting[2]


def throw(error):
    raise error


class Unpicklable(Exception):
    def __init__(self, left, right):
        super().__init__(f"{left} of {right}")


def test_exceptions_come_from_ranks_as_they_are():
    class Mine(Exception):
        pass

    assert type(failure(lambda: throw(Mine("own class"))).__cause__) is Mine
    assert failure(lambda: throw(ValueError(torch.arange(3)))).__cause__.args[0].tolist() == [0, 1, 2]
    assert "SystemExit: 3" in str(failure(lambda: sys.exit(3)))
    error = failure(lambda: throw(Unpicklable(1, 2)))
    assert "could not be sent: TypeError" in str(error)
    assert "Unpicklable: 1 of 2" in str(error.__cause__)


def test_unpicklable_result_names_rank_and_type():
    with pytest.raises(ArgumentError, match="cannot send the result of rank 1, of type lock"):
        run(lambda: _thread.allocate_lock() if get_rank() == 1 else 0, 2)


def test_death_between_runs_fails_the_next():
    with world(2) as w:
        w.run(get_rank)
        os.kill(w.pids[1], signal.SIGKILL)
        with pytest.raises(RankFailed) as caught:
            w.run(only, 1, int)
        assert caught.value.rank == 1
        assert w.run(get_rank) == [0, 1]


def test_a_death_before_the_run_is_a_death(monkeypatch):
    """The first rank is killed before it hears which rank it is."""
    killed: list[None] = []

    def kill_first(pid):
        if not killed:
            killed.append(os.kill(pid, signal.SIGKILL))
            until(lambda: not start_ticks(pid))
        return start_ticks(pid)

    monkeypatch.setattr(processes, "start_ticks", kill_first)
    error = failure(only, 2, 1, int, timeout_s=60)
    assert error.rank == 0
    assert "was killed by signal 9 (SIGKILL)" in error.traceback
    assert "PeerGone: rank 0 (pid" in error.waiting[1]
    assert "was killed by signal 9" in error.waiting[1]


def test_stuck_ranks_are_killed_with_their_stacks(short_grace):
    """Also one that is stopped."""

    def stuck():
        unisono.barrier()
        (forever, boom, lambda: os.kill(os.getpid(), signal.SIGSTOP))[get_rank()]()

    error = failure(stuck, 3)
    assert error.rank == 1
    assert "in forever" in error.waiting[0]
    assert f"{PACKAGE}/ranks/" not in error.waiting[0]
    assert "does not say where it is: its process takes no signals now" in error.waiting[2]


def test_the_deadline_names_who_is_late_and_where():
    with pytest.raises(WaitTimeout) as caught:
        run(lambda: get_rank() == 1 or forever(), 3, timeout_s=2.0)
    assert caught.value.missing == (0, 2)
    assert str(caught.value).count("in forever") == 2


def test_source_lines_without_a_file_are_shown(monkeypatch):
    source, names = "def cell():\n    return 1 // 0  # in a notebook\n", {"__name__": "__main__"}
    monkeypatch.setitem(linecache.cache, "<1>", (len(source), None, source.splitlines(keepends=True), "<1>"))
    exec(compile(source, "<1>", "exec"), names)  # noqa: S102  what a notebook does
    assert "# in a notebook" in str(failure(names["cell"]))


def test_survivors_go_on_until_time_is_up(monkeypatch):
    """The parent does not hurry them. Who has died is told by it."""
    monkeypatch.setattr(processes, "GRACE_S", 0.0)

    def go_on():
        group = init()
        if group.rank == 1:
            os._exit(3)
        until(lambda: group.engine.arena.board(1).gone is not None)
        return forever() if group.rank == 0 else group.rank

    stuck, failed, value = run(go_on, 3, timeout_s=3.0, return_exceptions=True)
    assert all(isinstance(stuck, kind) for kind in (RankFailed, WaitTimeout))
    assert stuck.missing == (0,)
    assert "in forever" in str(stuck)
    assert "exited with code 3" in str(failed)
    assert value == 2


def test_time_runs_where_a_rank_cannot_begin(tmp_path):
    """Only one rank can read the argument."""
    made = Made(os.mkdir, tmp_path / "x")
    outcomes = run(lambda _: forever(), 2, (made,), timeout_s=1.0, return_exceptions=True)
    assert sorted(isinstance(one, WaitTimeout) for one in outcomes) == [False, True]


def load(seconds):
    """As an import may, it takes its time on rank 1."""
    time.sleep(seconds * get_rank())


def test_the_start_does_not_count():
    """To load the function takes longer than it may take itself."""
    assert len(run(id, 2, (Made(load, 2.5),), timeout_s=1.5)) == 2


def test_error_names_only_ranks_not_started(monkeypatch):
    with world(2, timeout_s=100) as w:
        w.run(id, Made(load, 0.0))  # so that both have imported this file
        monkeypatch.setattr(processes, "START_S", 2.0)
        with pytest.raises(WaitTimeout, match=r"the start of run\(id\) took longer than") as caught:
            w.run(id, Made(load, 1000.0))
    assert caught.value.missing == (1,)
    assert "in load" in str(caught.value)


def test_failure_does_not_wait_for_starting_ranks(short_grace):
    error = failure(id, 2, Made(lambda: forever() if get_rank() else boom()))
    assert "boom" in str(error)
    assert error.rank == 0
    assert "did not end in time" in error.waiting[1]


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
    def start():
        (tmp_path / "pid").write_text(f"{subprocess.Popen(['sleep', '1000']).pid}")
        os.kill(os.getpid(), number)

    (outcome,) = run(start, 1, return_exceptions=True)
    child = int((tmp_path / "pid").read_text())
    assert isinstance(outcome, RankFailed) == bool(number)
    if number:
        until(lambda: not start_ticks(child))
    else:
        assert start_ticks(child)
        os.kill(child, signal.SIGKILL)


def raised(rank, error, at_ns, kind="raised"):
    how = f"raised {type(error).__name__}: {error}"
    return Report(rank, kind, how, f"Traceback of rank {rank}\n{how}\n", at_ns, payload=pack(error))


def gone(rank, waiting):
    return PeerGone(rank, 4711, "was killed by signal 9", waiting, "all_reduce #3")


TIME = RunTime("run(f)", 30.0, 1.5)


def verdict(*reports):
    with pytest.raises(Exception) as caught:
        results(sorted(reports, key=lambda report: report.rank), TIME)
    return caught.value


def test_the_first_in_time_is_blamed():
    """Not a rank that waited for another one."""
    reports = raised(0, gone(2, 0), 5, "waited"), raised(1, KeyError("late"), 20), raised(2, ValueError("early"), 10)
    error = verdict(*reports, Report(3, "returned", "returned", payload=pack(1)))
    assert type(error) is RankFailed
    assert error.rank == 2
    assert isinstance(error.__cause__, ValueError)
    assert "Traceback of rank 2" in str(error)
    assert "(and rank 1 raised KeyError: 'late')" in str(error)
    assert sorted(error.waiting) == [0]


def test_all_the_same_is_said_once():
    calls = {rank: CallRecord(name) for rank, name in enumerate(("broadcast", "all_reduce", "broadcast"))}
    error = verdict(*(raised(rank, MismatchError(4, calls, [1]), 10 + rank) for rank in (0, 1, 2)))
    assert isinstance(error, RankFailed)
    assert isinstance(error, MismatchError)
    assert isinstance(error, UsageError)
    assert (error.rank, error.number, error.odd) == (0, 4, (1,))
    assert "(the same on ranks 1, 2)" in str(error)
    assert str(error).count("Traceback") == 1


@pytest.mark.parametrize(
    "cause",
    [ArgumentError("no such root"), WaitTimeout("all_reduce #3", 1.0, [1], 0), gone(3, 1), RankFailed(2, "inner"),
     rank_failed(2, "inner", {}, ArgumentError("deep")), OutOfMemory("full"), ValueError("not ours"), None],
)  # fmt: skip
def test_the_error_is_both_and_survives_pickling(cause):
    error = rank_failed(1, "Traceback", {0: "waited"}, cause)
    for twin in (error, unpack(pack(error)), copy.copy(error)):
        assert isinstance(twin, RankFailed)
        for kind in (ArgumentError, WaitTimeout, MemoryError):
            assert isinstance(twin, kind) == isinstance(cause, kind)
        assert (twin.rank, twin.traceback, twin.waiting) == (1, "Traceback", {0: "waited"})
        assert str(twin) == "rank 1 failed:\nTraceback\n\nrank 0 failed after it:\nwaited"
        assert repr(type(twin)) == "<class 'unisono.RankFailed'>"
    assert error.__cause__ is cause
    if isinstance(error, ArgumentError | WaitTimeout | PeerGone):
        assert isinstance(unpack(pack(error)).__cause__, type(cause))


OWN = [
    (raised(0, KeyError("k"), 9), KeyError, "raised KeyError: 'k'"),
    (raised(1, gone(2, 1), 5, "waited"), PeerGone, "was killed by signal 9 while rank 1 waited"),
    (Report(2, "died", "was killed by signal 9"), ChildProcessError, "rank 2 was killed by signal 9"),
    (Report(3, "stuck", "did not finish"), WaitTimeout, "run(f) took longer than 1.5 s: rank 3 had not finished"),
    (Report(4, "stuck", "did not finish", "its stack"), WaitTimeout, "its stack"),
    (Report(5, "returned", "returned", payload=b"junk"), ArgumentError, "cannot read the result of rank 5"),
    (Report(6, "starting", "did not finish", "x"), WaitTimeout, "the start of run(f) took longer than 30 s"),
]


def test_outcomes_have_each_rank_s_own_failure():
    well = Report(7, "returned", "returned", payload=pack("d"))
    *failures, last = outcomes([*(report for report, _, _ in OWN), well], TIME)
    assert last == "d"
    for error, (report, kind, words) in zip(failures, OWN, strict=True):
        assert isinstance(error, RankFailed)
        assert (error.rank, error.waiting, type(error.__cause__)) == (report.rank, {}, kind)
        assert isinstance(error, kind) == issubclass(kind, UnisonoError)
        assert words in f"{error} {error.__cause__}"
