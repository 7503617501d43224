"""timeout_s counts from when the function has begun on every rank; the start has a limit and an error of its own."""

import itertools
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from unisono import init, run, world
from unisono.base.errors import RankFailed, WaitTimeout
from unisono.base.fd_channel import Channel
from unisono.ranks.launch import processes, report_collector
from unisono.ranks.launch.launch_messages import STARTED, Report


class SlowToLoad:
    """Unpickles only once a file is there: an import that takes its time."""

    def __init__(self, path, rank_that_waits):
        self.path, self.rank_that_waits = path, rank_that_waits

    def __reduce__(self):
        return load, (self.path, self.rank_that_waits)


def load(path, rank_that_waits):
    while init().rank == rank_that_waits and not os.path.exists(path):
        pass
    return 7


def test_the_start_does_not_count(monkeypatch):
    """20 seconds pass before the ranks' messages are read; the function had 15 from its own beginning."""
    now = itertools.count(1000.0, 20.0)
    monkeypatch.setattr(report_collector, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(report_collector, "remaining", lambda _deadline: 30.0)
    channels, ranks = zip(*((mine, Channel(raw)) for mine, raw in (Channel.pair() for _ in range(2))), strict=True)
    server, theirs = Channel.pair()
    for rank, channel in enumerate(ranks):
        channel.send(STARTED)
        channel.send(Report(rank, "returned", "returned"))
    collected = report_collector.Collector(channels, server, [1, 2], None, [])
    collected.wait(1300.0, 15.0, 5.0)
    assert sorted(collected.reports) == [0, 1]
    assert collected._deadline >= 1020.0 + 15.0
    theirs.close()


def test_a_rank_that_does_not_start_is_named_and_the_others_are_not(monkeypatch):
    with world(2, timeout_s=100) as w:
        w.run(int, SlowToLoad(__file__, 1))  # so that both have imported this file
        monkeypatch.setattr(processes, "START_S", 3.0)
        with pytest.raises(WaitTimeout, match=r"the start of run\(int\) took longer than") as caught:
            w.run(int, SlowToLoad("/nowhere", 1))
    assert caught.value.missing == (1,)
    assert "in load" in str(caught.value)


def test_a_failure_while_another_rank_starts_does_not_wait_for_it(monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 0.3)

    class Broken:
        def __reduce__(self):
            return fail_on_rank_0, ()

    with pytest.raises(RankFailed, match="broken") as caught:
        run(int, 2, (Broken(),))
    assert caught.value.rank == 0
    assert "did not end in time" in caught.value.waiting[1]


def fail_on_rank_0():
    if init().rank == 0:
        raise ValueError("broken")
    threading.Event().wait()


def test_a_slow_start_leaves_the_whole_time_to_the_function(tmp_path):
    done = tmp_path / "done"
    timer = threading.Timer(1.0, done.touch)
    timer.start()
    with world(2, timeout_s=60) as w:
        assert w.run(int, SlowToLoad(str(done), 1)) == [7, 7]
    timer.join()


@pytest.mark.cold
def test_the_process_that_runs_needs_neither_torch_nor_numba():
    code = "import sys, unisono\nunisono.run(int, 2)\nprint([m for m in ('torch', 'numba') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=True)
    assert done.stdout == "[]\n"
