"""`run(restarts=...)`: processes in the places of ranks that die, as soon as the others let them in."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import unisono
from tests.support.newcomers import catch_up
from tests.support.waiting import until

DEADLINE_S = 60.0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lose_and_grow(victim: int) -> tuple[int, int, str]:
    group = unisono.init()
    if not group.newcomers:
        unisono.barrier()
        if group.rank == victim:
            die()
        with pytest.raises(unisono.PeerGone):
            unisono.barrier()
        group.shrink()
        group = unisono.grow(size=3)
    unisono.barrier()
    sys.stdout.write("is there\n")
    return group.rank, os.getpid(), os.environ["UNISONO_TEST_OF_RESTARTS"]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_new_process_returns_in_the_place_of_one_that_died(
    victim: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UNISONO_TEST_OF_RESTARTS", "the same environment")
    with unisono.World(3, timeout_s=DEADLINE_S, restarts=1, prefix=True) as world:
        done = world.run(lose_and_grow, victim)
        pids = [pid for _, pid, _ in done]
        assert [rank for rank, _, _ in done] == [0, 1, 2]
        assert len(set(pids)) == 3
        assert {text for _, _, text in done} == {"the same environment"}
        assert world.run(os.getpid) != pids, "a broken group is followed by a new one"
    assert sorted(capsys.readouterr().out.splitlines()) == [f"[rank {rank}] is there" for rank in range(3)]


def test_only_so_many(tmp_path: Path) -> None:
    """The last one that dies is a failure like others."""

    def dies_again_and_again() -> int:
        group = unisono.init()
        known = catch_up(group) if group.newcomers else 0
        assert isinstance(known, int)
        for done in range(known, 3):
            unisono.barrier()
            if group.rank == 1:
                (tmp_path / f"{done}").touch()
                die()
            with pytest.raises(unisono.PeerGone):
                unisono.barrier()
            group = group.shrink()
            if done == 2:
                return group.size
            group = unisono.grow(size=2)
            catch_up(group, done + 1)
        raise AssertionError

    done = unisono.run(dies_again_and_again, 2, timeout_s=DEADLINE_S, restarts=2, return_exceptions=True)
    assert done[0] == 1
    assert "was killed by signal 9" in str(done[1])
    assert len(list(tmp_path.iterdir())) == 3


def test_who_is_never_let_in_ends_with_the_others() -> None:
    def goes_on_alone() -> str:
        group = unisono.init()
        unisono.barrier()
        if group.rank == 1:
            die()
        with pytest.raises(unisono.PeerGone):
            unisono.barrier()
        group.shrink()
        return "alone"

    done = unisono.run(goes_on_alone, 2, timeout_s=DEADLINE_S, restarts=1, return_exceptions=True)
    assert done[0] == "alone"
    assert isinstance(done[1], unisono.RankFailed)
    with pytest.raises(unisono.RankFailed, match="was killed by signal 9"):
        unisono.run(goes_on_alone, 2, timeout_s=DEADLINE_S, restarts=1)


def test_when_all_die_the_run_ends() -> None:
    with pytest.raises(unisono.RankFailed, match="was killed by signal 9"):
        unisono.run(die, 2, timeout_s=DEADLINE_S, restarts=1)


@pytest.mark.long
def test_an_exception_is_still_the_end_of_all(tmp_path: Path) -> None:
    def raises() -> None:
        if unisono.get_rank() == 0:
            raise ValueError("no reason to try again")
        until(lambda: False, DEADLINE_S)

    with pytest.raises(unisono.RankFailed, match="no reason to try again"):
        unisono.run(raises, 2, timeout_s=1.0, restarts=1)


@pytest.mark.parametrize("restarts", [-1, 1.5, "2"])
def test_numbers_that_are_none(restarts: int) -> None:
    with pytest.raises(unisono.ArgumentError, match="restarts: expected a whole number"):
        unisono.World(2, restarts=restarts)
