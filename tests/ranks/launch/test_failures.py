"""What a parent hears when ranks raise, die or get stuck: reports in, results or one exception out."""

import _thread
import copy
import os
import select
import signal
import threading
import time

import pytest
import torch

import unisono
from tests.support.programs import run_python
from unisono import init, run, world
from unisono.base.errors import ArgumentError, MismatchError, OutOfMemory, PeerGone, RankFailed, UsageError, WaitTimeout
from unisono.base.records import CallRecord
from unisono.ranks.launch import processes
from unisono.ranks.launch.fork_client import fork_rank
from unisono.ranks.launch.launch_messages import Report, pack, unpack
from unisono.ranks.launch.reports import RunTime, outcomes, rank_failed, results

PACKAGE = os.path.dirname(unisono.__file__)


class Unpicklable(Exception):
    def __init__(self, left, right):
        super().__init__(f"{left} of {right}")


def only(rank, act):
    """This rank acts; the others wait for it in a call."""
    if init().rank == rank:
        act()
    unisono.barrier()


def boom():
    raise ValueError("boom")


def forever():
    threading.Event().wait()


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 0.3)


def test_exception_names_its_rank():
    with pytest.raises(RankFailed) as caught:
        run(only, 3, args=(1, boom))
    error = caught.value
    assert error.rank == 1
    assert isinstance(error.__cause__, ValueError)
    assert "in boom" in error.traceback
    assert f"{PACKAGE}/" not in error.traceback
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


def test_unpicklable_exception_is_described():
    def bad():
        raise Unpicklable(1, 2)

    with pytest.raises(RankFailed, match="could not be sent: TypeError") as caught:
        run(bad, 1)
    assert "Unpicklable: 1 of 2" in str(caught.value.__cause__)


def test_unpicklable_result_names_rank_and_type():
    with pytest.raises(ArgumentError, match="cannot send the result of rank 1, of type lock"):
        run(lambda: _thread.allocate_lock() if init().rank == 1 else 0, 2)


def test_unreadable_argument_fails_the_ranks():
    class Grenade:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(RankFailed, match="invalid literal for int"):
        run(init, 2, args=(Grenade(),))


def test_death_between_runs_fails_the_next():
    with world(2) as w:
        w.run(init_rank)
        os.kill(w.pids[1], signal.SIGKILL)
        with pytest.raises(RankFailed) as caught:
            w.run(only, 1, int)
        assert caught.value.rank == 1
        assert w.run(init_rank) == [0, 1]


class Heard:
    """The line of a rank that has been killed, whose first message the test has heard."""

    def __init__(self, line):
        self.line, self.heard = line, [line.receive()]
        os.kill(self.heard[0].value[1], signal.SIGKILL)
        assert select.select([line], [], [], 60)[0]

    def __getattr__(self, name):
        return getattr(self.line, name)

    def receive(self, deadline):
        return self.heard.pop() if self.heard else self.line.receive(deadline)


def test_a_death_before_the_run_is_a_death(monkeypatch):
    """The first rank is killed before the second one is forked."""
    forked = []

    def fork():
        channel, line = fork_rank()
        forked.append(line if forked else Heard(line))
        return channel, forked[-1]

    monkeypatch.setattr(processes, "fork_rank", fork)
    with pytest.raises(RankFailed) as caught:
        run(only, 2, (1, int), timeout_s=60)
    assert caught.value.rank == 0
    assert "was killed by signal 9 (SIGKILL)" in caught.value.traceback
    said = caught.value.waiting[1]
    assert "PeerGone: rank 0 (pid" in said
    assert "was killed by signal 9" in said


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


def test_dead_server_is_replaced():
    # In a process of its own: other tests have ranks of this one's server.
    done = run_python("-c", SERVERS_DEATH)
    assert done.stdout.split("\n")[:2] == ["True", "[0, 1]"], done.stderr


def test_stuck_ranks_are_killed_with_their_stacks(short_grace):
    with pytest.raises(RankFailed) as caught:
        run(lambda: (unisono.barrier(), boom() if init().rank == 1 else forever()), 3)
    assert caught.value.rank == 1
    for rank in (0, 2):
        assert "in forever" in caught.value.waiting[rank]
        assert f"{PACKAGE}/ranks/" not in caught.value.waiting[rank]


def test_a_stopped_rank_is_killed_too(short_grace):
    with pytest.raises(RankFailed) as caught:
        run(lambda: (unisono.barrier(), boom() if init().rank == 1 else os.kill(os.getpid(), signal.SIGSTOP)), 2)
    assert "does not say where it is: its process takes no signals now" in caught.value.waiting[0]


def test_the_deadline_names_who_is_late_and_where():
    start = time.monotonic()
    with pytest.raises(WaitTimeout) as caught:
        run(lambda: init().rank == 1 or forever(), 3, timeout_s=2.0)
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


def returned(rank, value):
    return Report(rank, "returned", "returned", at_ns=rank, payload=pack(value))


def raised(rank, error, at_ns, kind="raised"):
    how = f"raised {type(error).__name__}: {error}"
    return Report(rank, kind, how, f"Traceback of rank {rank}\n{how}\n", at_ns, payload=pack(error))


def died(rank, at_ns):
    how = "was killed by signal 9 (SIGKILL)"
    return Report(rank, "died", how, f"process 4711 {how}\n", at_ns)


def stuck(rank):
    return Report(rank, "stuck", "did not finish", f"stack of rank {rank}\n", 99)


def gone(rank, waiting):
    return PeerGone(rank, 4711, "was killed by signal 9", waiting, "all_reduce #3")


TIME = RunTime("run(f)", 30.0, 1.5)


def verdict(*reports):
    with pytest.raises(Exception) as caught:
        results(sorted(reports, key=lambda report: report.rank), TIME)
    return caught.value


def test_the_first_in_time_is_blamed():
    error = verdict(returned(0, 1), raised(1, KeyError("late"), 20), raised(2, ValueError("early"), 10))
    assert type(error) is RankFailed
    assert error.rank == 2
    assert isinstance(error.__cause__, ValueError)
    assert "Traceback of rank 2" in str(error)
    assert "(and rank 1 raised KeyError: 'late')" in str(error)
    assert error.waiting == {}


def test_waiting_rank_is_not_blamed():
    error = verdict(raised(0, gone(2, 0), 5, "waited"), raised(1, gone(2, 1), 6, "waited"), died(2, 7))
    assert error.rank == 2
    assert sorted(error.waiting) == [0, 1]
    assert "killed by signal 9 (SIGKILL)" in error.traceback


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
    [
        ArgumentError("no such root"),
        WaitTimeout("all_reduce #3", 1.0, [1], 0),
        gone(3, 1),
        RankFailed(2, "inner"),
        rank_failed(2, "inner", {}, ArgumentError("deep")),
        OutOfMemory("full"),
        ValueError("not ours"),
        None,
    ],
)
def test_the_error_is_both_and_survives_pickling(cause):
    error = rank_failed(1, "Traceback", {0: "waited"}, cause)
    for twin in (error, unpack(pack(error)), copy.copy(error)):
        assert isinstance(twin, RankFailed)
        assert isinstance(twin, ArgumentError) == isinstance(cause, ArgumentError)
        assert isinstance(twin, WaitTimeout) == isinstance(cause, WaitTimeout)
        assert isinstance(twin, MemoryError) == isinstance(cause, MemoryError)
        assert (twin.rank, twin.traceback, twin.waiting) == (1, "Traceback", {0: "waited"})
        assert str(twin) == "rank 1 failed:\nTraceback\n\nrank 0 failed after it:\nwaited"
        assert repr(type(twin)) == "<class 'unisono.RankFailed'>"
    assert error.__cause__ is cause
    if isinstance(error, ArgumentError | WaitTimeout | PeerGone):
        assert isinstance(unpack(pack(error)).__cause__, type(cause))


def test_outcomes_have_each_rank_s_own_failure():
    waited = raised(1, gone(2, 1), 5, "waited")
    reports = [raised(0, KeyError("k"), 9), waited, died(2, 7), returned(3, "d"), stuck(4)]
    reports.append(Report(5, "returned", "returned", payload=b"junk"))
    reports.append(Report(6, "starting", "did not finish", "stack of rank 6\n"))
    zero, one, two, value, four, five, six = outcomes(reports, TIME)
    assert value == "d"
    failures = [zero, one, two, four, five, six]
    assert [failure.rank for failure in failures] == [0, 1, 2, 4, 5, 6]
    assert all(isinstance(failure, RankFailed) and not failure.waiting for failure in failures)
    assert isinstance(zero.__cause__, KeyError)
    assert isinstance(one, PeerGone)
    assert str(two.__cause__) == "rank 2 was killed by signal 9 (SIGKILL)"
    assert isinstance(four, WaitTimeout)
    assert "run(f) took longer than 1.5 s: rank 4 had not finished" in str(four.__cause__)
    assert "stack of rank 4" in str(four)
    assert isinstance(five, ArgumentError)
    assert isinstance(six, WaitTimeout)
    assert "the start of run(f) took longer than 30 s" in str(six.__cause__)
