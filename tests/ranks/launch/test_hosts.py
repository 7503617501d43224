"""Worlds whose ranks behave as if they were on several hosts."""

import os
import subprocess
import sys
import tempfile

import pytest
import torch

import unisono
from tests.support.waiting import until
from unisono.base.errors import ArgumentError, RankFailed
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
    return group.hosts, os.environ["UNISONO_HOST_ID"], os.fstat(group.host.arena.fd).st_ino


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
    ("ranks", "hosts", "words"), [(4, "2x1", "4 ranks, but hosts 2x1 have 2"), (2, "2y1", "such as")]
)
def test_hosts_that_do_not_fit_are_refused(ranks, hosts, words):
    with pytest.raises(ArgumentError, match=words):
        unisono.world(ranks, hosts=hosts)


def test_they_need_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with unisono.world(hosts="2x1") as world:
        world.run(about)
        assert not [*tmp_path.iterdir()]


def test_after_a_failure_the_ranks_are_new_ones():
    def fail_once(fail):
        if fail:
            raise ValueError("on purpose")
        return unisono.init().hosts.text

    with unisono.world(hosts="2x1") as world:
        with pytest.raises(RankFailed, match="on purpose"):
            world.run(fail_once, fail=True)
        assert world.run(fail_once, fail=False) == ["2x1", "2x1"]


def test_a_word_of_the_last_run_that_comes_late_says_nothing_in_this_one():
    """Rank 0 keeps what its copy of rank 2's board says once that has returned, and gets the same in the next run."""

    def leave():
        world = unisono.init()
        if world.rank == 0:
            board = world.host.arena.board(2)
            until(lambda: board.gone is not None)
            world.late = board.image()

    def stay():
        world = unisono.init()
        pair = unisono.new_group([0, 2])
        if world.rank == 0:
            world.host.arena.board(2).copy(world.late)
            assert world.liveness.gone(2) is pair.liveness.gone(1) is None
        if pair:
            unisono.all_reduce(torch.ones(3), group=pair)

    with unisono.world(hosts="2x2") as world:
        world.run(leave)
        world.run(stay)


def test_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [sys.executable, "-m", "unisono", "run", "--hosts", "2+1", "--no-prefix", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "2+1 ['0', '0', '3', '2', '0']", "2+1 ['1', '1', '3', '2', '0']", "2+1 ['2', '0', '3', '1', '1']",
    ]  # fmt: skip
