"""Worlds whose ranks behave as if on several hosts, and the start, which has a limit and an error of its own."""

import os
import tempfile
import threading
import time
from typing import NamedTuple

import pytest
import torch

import unisono
from tests.ranks.launch.conftest import failure
from tests.support.programs import run_python
from tests.support.waiting import until
from unisono import get_rank, run, world
from unisono.base.errors import ArgumentError, WaitTimeout
from unisono.ranks.launch import processes
from unisono.schedule import Hosts

SCRIPT = """
import os, sys, unisono
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "UNISONO_HOST_ID")
sys.stdout.write(f"{unisono.init().hosts.text} {[os.environ[name] for name in names]}\\n")
"""


def about():
    group = unisono.init()
    return group.hosts, os.environ["UNISONO_HOST_ID"], os.fstat(group.engine.arena.fd).st_ino


@pytest.mark.parametrize("hosts", ["2x1", "3+1", "2x2:round_robin", Hosts(((0, 2), (1,)))])
def test_each_host_has_its_memory(hosts):
    """A map may be given as it is."""
    said = unisono.run(about, hosts=hosts)
    hosts = Hosts.parse(hosts) if isinstance(hosts, str) else hosts
    assert {one[0] for one in said} == {hosts}
    assert [one[1] for one in said] == [f"{hosts.host_of(rank)}" for rank in range(hosts.ranks)]
    assert Hosts.of([one[2] for one in said]) == hosts


def test_one_host_is_a_world_as_ever():
    say = lambda: (unisono.init().hosts, "UNISONO_HOST_ID" in os.environ)  # noqa: E731
    assert unisono.run(say, hosts="2") == [(Hosts.one(2), False)] * 2


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
        board = world.engine.arena.board(2)
        world.late = until(lambda: board.gone and board.image()) if world.rank == 0 else None

    def stay():
        world, pair = unisono.init(), unisono.new_group([0, 2])
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


class SlowToLoad(NamedTuple):
    """Takes its time to unpickle on rank 1, as an import may."""

    seconds: float

    def __reduce__(self):
        return load, (self.seconds,)


def load(seconds):
    time.sleep(seconds * get_rank())


def test_the_start_does_not_count():
    """To load the function takes longer than it may take itself."""
    assert len(run(id, 2, (SlowToLoad(2.5),), timeout_s=1.5)) == 2


def test_error_names_only_ranks_not_started(monkeypatch):
    with world(2, timeout_s=100) as w:
        w.run(id, SlowToLoad(0.0))  # so that both have imported this file
        monkeypatch.setattr(processes, "START_S", 2.0)
        with pytest.raises(WaitTimeout, match=r"the start of run\(id\) took longer than") as caught:
            w.run(id, SlowToLoad(1000.0))
    assert caught.value.missing == (1,)
    assert "in load" in str(caught.value)


class Broken:
    def __reduce__(self):
        return fail_on_rank_0, ()


def fail_on_rank_0():
    if get_rank() == 0:
        raise ValueError("broken")
    threading.Event().wait()


def test_failure_does_not_wait_for_starting_ranks(short_grace):
    error = failure(id, 2, Broken())
    assert "broken" in str(error)
    assert error.rank == 0
    assert "did not end in time" in error.waiting[1]


@pytest.mark.cold
def test_parent_needs_neither_torch_nor_numba():
    code = "import sys, unisono\nunisono.run(int, 2)\nprint([m for m in ('torch', 'numba') if m in sys.modules])"
    done = run_python("-c", code, check=True)
    assert done.stdout == "[]\n"
