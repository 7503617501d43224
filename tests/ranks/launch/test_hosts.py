"""Worlds whose ranks behave as if on several hosts, and the start, which has a limit and an error of its own."""

import itertools
import os
import tempfile
import threading
from types import SimpleNamespace

import pytest
import torch

import unisono
from tests.support.programs import run_python
from tests.support.waiting import until
from unisono import init, run, world
from unisono.base.errors import ArgumentError, RankFailed, WaitTimeout
from unisono.base.fd_channel import Channel
from unisono.ranks.launch import processes
from unisono.ranks.launch.launch_messages import STARTED, Report
from unisono.schedule import Hosts

SCRIPT = """
import os, sys
import unisono
group = unisono.init()
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "UNISONO_HOST_ID")
sys.stdout.write(f"{group.hosts.text} {[os.environ[name] for name in names]}\\n")
"""


def about():
    group = unisono.init()
    return group.hosts, os.environ["UNISONO_HOST_ID"], os.fstat(group.engine.arena.fd).st_ino


@pytest.mark.parametrize("shape", ["2x1", "3+1", "2x2:round_robin"])
def test_each_host_has_its_memory(shape):
    hosts = Hosts.parse(shape)
    said = unisono.run(about, hosts=shape)
    assert {one[0] for one in said} == {hosts}
    assert [one[1] for one in said] == [f"{hosts.host_of(rank)}" for rank in range(hosts.ranks)]
    assert Hosts.of([one[2] for one in said]) == hosts


def test_a_map_may_be_given_as_it_is():
    with unisono.world(hosts=Hosts(((0, 2), (1,)))) as world:
        assert world.size == 3
        assert [one[0].text for one in world.run(about)] == ["2+1 (0 2 | 1)"] * 3


def test_one_host_is_a_world_as_ever():
    (hosts, *_), *others = unisono.run(lambda: (unisono.init().hosts, os.environ.get("UNISONO_HOST_ID")), hosts="2")
    assert (hosts, len(others)) == (Hosts.one(2), 1)


@pytest.mark.parametrize(
    ("ranks", "hosts", "words"), [(4, "2x1", "got 4, but hosts 2x1 have 2"), (2, "2y1", "such as"), (2, 2, "such as")]
)
def test_hosts_that_do_not_fit_are_refused(ranks, hosts, words):
    with pytest.raises(ArgumentError, match=words):
        unisono.world(ranks, hosts=hosts)


def test_they_need_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with unisono.world(hosts="2x1") as world:
        world.run(about)
        assert not [*tmp_path.iterdir()]


def test_late_words_of_the_last_run_say_nothing():
    """Rank 0 keeps what its copy of rank 2's board says once that has returned, and gets the same in the next run."""

    def leave():
        world = unisono.init()
        if world.rank == 0:
            board = world.engine.arena.board(2)
            until(lambda: board.gone is not None)
            world.late = board.image()

    def stay():
        world = unisono.init()
        pair = unisono.new_group([0, 2])
        if world.rank == 0:
            world.engine.arena.board(2).copy(world.late)
            assert world.liveness.gone(2) is pair.liveness.gone(1) is None
        if pair:
            unisono.all_reduce(torch.ones(3), group=pair)

    with unisono.world(hosts="2x2") as world:
        world.run(leave)
        world.run(stay)


def test_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_python("-m", "unisono", "run", "--hosts", "2+1", "--no-prefix", script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "2+1 ['0', '0', '3', '2', '0']", "2+1 ['1', '1', '3', '2', '0']", "2+1 ['2', '0', '3', '1', '1']",
    ]  # fmt: skip


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
    times = SimpleNamespace(monotonic=lambda: next(now), monotonic_ns=lambda: 0)
    monkeypatch.setattr(processes, "time", times)
    monkeypatch.setattr(processes, "remaining", lambda _deadline: 30.0)
    channels, ranks = zip(*((mine, Channel(raw)) for mine, raw in (Channel.pair() for _ in range(2))), strict=True)
    lines, servers = zip(*(Channel.pair() for _ in range(2)), strict=True)
    for rank, channel in enumerate(ranks):
        channel.send(STARTED)
        channel.send(Report(rank, "returned", "returned")[:-1])
    started = object.__new__(processes.RankProcesses)
    ends = enumerate(zip(channels, lines, strict=True))
    started._ranks = [processes.Rank(rank, channel, line, None, os.getpid()) for rank, (channel, line) in ends]
    started._collect([], 1300.0, 15.0, 5.0)
    assert [rank.report.kind for rank in started._ranks] == ["returned", "returned"]
    assert started._deadline >= 1020.0 + 15.0
    for server in servers:
        server.close()


def test_error_names_only_ranks_not_started(monkeypatch):
    with world(2, timeout_s=100) as w:
        w.run(int, SlowToLoad(__file__, 1))  # so that both have imported this file
        monkeypatch.setattr(processes, "START_S", 2.0)
        with pytest.raises(WaitTimeout, match=r"the start of run\(int\) took longer than") as caught:
            w.run(int, SlowToLoad("/nowhere", 1))
    assert caught.value.missing == (1,)
    assert "in load" in str(caught.value)


def test_failure_does_not_wait_for_starting_ranks(monkeypatch):
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


@pytest.mark.cold
def test_parent_needs_neither_torch_nor_numba():
    code = "import sys, unisono\nunisono.run(int, 2)\nprint([m for m in ('torch', 'numba') if m in sys.modules])"
    done = run_python("-c", code, check=True)
    assert done.stdout == "[]\n"
