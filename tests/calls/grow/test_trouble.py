"""What may go wrong while a group grows: somebody dies at some moment, or is in the way. Nobody waits for ever."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import unisono
from tests.support.faults import FAILED
from tests.support.newcomers import catch_up, newcomer, tell, told
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.engine.memory.board import Board
from unisono.ranks.elastic import join_request as joining
from unisono.ranks.elastic.join_admission import JoinAdmission

DEADLINE_S = 100.0


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def total(group: unisono.Group) -> float:
    mine = torch.full((5000,), 4.0 ** group.world_ranks[group.rank])
    unisono.all_reduce(mine, group=group)
    return mine[-1].item()


def total_of_who_is_left(group: unisono.Group) -> float:
    while True:
        try:
            result = total(group)
            unisono.barrier(group)
        except unisono.PeerGone:
            group = group.shrink()
        else:
            return result


def comes(folder: Path, name: str, patch: Callable[[], None] = lambda: None) -> None:
    """A process that joins, and sees what the sum is."""

    def join() -> None:
        patch()
        group = unisono.join(timeout_s=DEADLINE_S)
        newcomers = group.newcomers
        tell(folder, name, sum=total_of_who_is_left(group), newcomers=newcomers)

    newcomer(join)


def without(victim: int) -> unisono.Group:
    """The group of those that are left when this rank has died, or has never been."""
    group = unisono.init()
    unisono.barrier()
    if group.rank == victim:
        die()
    with pytest.raises(unisono.PeerGone):
        unisono.barrier()
    return group.shrink()


def die_when_offered_a_place() -> None:
    joining.Arena.attach = die


def die_when_told_the_outcome() -> None:
    joining._take_place = die


def stop_when_told_the_outcome() -> None:
    joining._take_place = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)


def run(work: Callable[..., object], ranks: int, *arguments: object) -> list[object]:
    return unisono.run(work, ranks, arguments, timeout_s=DEADLINE_S, return_exceptions=True)


def test_a_newcomer_that_dies_before_it_is_one_is_not_missed(tmp_path: Path) -> None:
    def work() -> float:
        group = without(1)
        if group.rank == 0:
            comes(tmp_path, "dies", die_when_offered_a_place)
            asks_until_it_dies = unisono.grow(size=3, timeout_s=1)
            assert asks_until_it_dies is group
            comes(tmp_path, "lives")
        else:
            assert unisono.grow() is group
        assert total(group) == 17.0
        larger = unisono.grow(size=3)
        assert larger.newcomers == (1,)
        return total_of_who_is_left(larger)

    done = run(work, 3)
    assert done[0] == done[2] == 21.0
    until(lambda: bool(told(tmp_path)))  # it ends after the ranks
    assert told(tmp_path) == {"lives": {"sum": 21.0, "newcomers": [1]}}


def test_a_newcomer_that_dies_when_it_is_one_is_a_rank_that_has_died(tmp_path: Path) -> None:
    def work() -> float:
        group = without(2)
        if group.rank == 0:
            comes(tmp_path, "dies", die_when_told_the_outcome)
        larger = unisono.grow(size=3)
        assert larger.newcomers == (2,)
        with pytest.raises(unisono.PeerGone) as caught:
            unisono.barrier()
        assert caught.value.failed == (2,)
        group = larger.shrink()
        assert total(group) == 5.0
        if group.rank == 1:
            comes(tmp_path, "lives")
        larger = unisono.grow(size=3)
        return total_of_who_is_left(larger)

    done = run(work, 3)
    assert done[:2] == [21.0, 21.0]
    until(lambda: bool(told(tmp_path)))  # it ends after the ranks
    assert told(tmp_path) == {"lives": {"sum": 21.0, "newcomers": [2]}}


@pytest.mark.long
@in_new_world(3, timeout_s=DEADLINE_S, return_exceptions=True, gives=[5.0, 5.0, FAILED])
def test_a_newcomer_that_is_stopped_when_it_is_one_is_named_and_the_others_go_on(tmp_path: Path) -> float:
    group = without(2)
    group.timeout_s = 5.0
    if group.rank == 0:
        comes(tmp_path, "stops", stop_when_told_the_outcome)
    with pytest.raises(unisono.WaitTimeout, match=r"in grow\(\) for rank 2 .* do not use its memory yet") as late:
        unisono.grow(size=3, timeout_s=DEADLINE_S)
    assert late.value.missing == (2,)
    larger = unisono.init()
    smaller = larger.shrink(without=late.value.missing)
    with suppress(ProcessLookupError):
        os.kill(larger.host.arena.board(2).pid, signal.SIGKILL)
    return total(smaller)


def before_it_makes_an_offer() -> None:
    JoinAdmission.admit = die


def before_it_says_the_outcome() -> None:
    Board.set_growth = die


def after_it_has_said_the_outcome() -> None:
    def say_and_die(board: Board, number: int, start: int, say: Callable[..., None] = Board.set_growth) -> None:
        say(board, number, start)
        die()

    Board.set_growth = say_and_die


@pytest.mark.parametrize(
    "moment", [before_it_makes_an_offer, before_it_says_the_outcome, after_it_has_said_the_outcome]
)
def test_who_is_at_the_door_dies(tmp_path: Path, moment: Callable[[], None]) -> None:
    """The others are of one mind, and the next one listens."""

    def work() -> list[float]:
        group = without(2)
        if group.rank == 0:
            comes(tmp_path, "first")
            comes(tmp_path, "second")
            moment()
        try:
            larger, said = unisono.grow(size=4), 1.0
        except unisono.PeerGone:
            group.shrink()
            larger, said = unisono.grow(size=4), 0.0
        return [said, total_of_who_is_left(larger)]

    done = run(work, 4)
    said = moment is after_it_has_said_the_outcome
    assert done[1] == done[3] == ([1.0, 84.0] if said else [0.0, 85.0])
    let_in = 1 if said else 2
    until(lambda: len(told(tmp_path)) == let_in)
    assert {one["sum"] for one in told(tmp_path).values()} == {84.0 if said else 85.0}


def test_another_member_dies_meanwhile(tmp_path: Path) -> None:
    def work() -> float:
        group = without(2)
        if group.rank == 0:
            comes(tmp_path, "first")
            comes(tmp_path, "second")
        if group.rank == 1:
            unisono.Group.give_up_places = die
        with pytest.raises(unisono.PeerGone) as caught:
            unisono.grow(size=4)
        assert caught.value.failed == (1,)
        group.shrink()
        return total_of_who_is_left(unisono.grow(size=4))

    done = run(work, 4)
    assert done[0] == done[3] == 85.0
    until(lambda: len(told(tmp_path)) == 2)
    assert {one["sum"] for one in told(tmp_path).values()} == {85.0}


@pytest.mark.parametrize("step", ["decision", "admit"])
@in_new_world(3, timeout_s=DEADLINE_S, return_exceptions=True, gives=[None, None, FAILED])
def test_who_stops_the_call_stops_it_for_all(tmp_path: Path, step: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    group = without(2)
    if group.rank == 0:
        comes(tmp_path, "waits")
        setattr(JoinAdmission, step, interrupt)
    with pytest.raises((KeyboardInterrupt, unisono.PeerFailed)) as caught:
        unisono.grow(size=3)
    assert group.rank == 0 or "KeyboardInterrupt" in str(caught.value)


@in_new_world(3, timeout_s=DEADLINE_S, return_exceptions=True, gives=["was let down", "was stopped", FAILED])
def test_a_member_that_is_stopped_is_not_waited_for(tmp_path: Path) -> str:
    """It has been in time for the larger group, and knows nothing of it."""
    group = without(2)
    if group.rank == 0:
        comes(tmp_path, "comes")
        larger = unisono.grow(size=3)
        assert larger.size == 3
        with pytest.raises(unisono.PeerGone, match=r"rank 1 .* was interrupted by KeyboardInterrupt in grow\(\)"):
            total(larger)
        return "was let down"

    def interrupted(board: Board, number: int) -> int | None:
        raise KeyboardInterrupt

    Board.growth = interrupted
    with pytest.raises(KeyboardInterrupt):
        unisono.grow(size=3)
    return "was stopped"


@in_new_world(
    4,
    timeout_s=DEADLINE_S,
    return_exceptions=True,
    gives=["was refused", "was refused", "was there all the time", FAILED],
)
def test_no_place_is_given_away_while_a_rank_is_there_that_is_no_member(tmp_path: Path) -> str:
    group = unisono.init()
    most = unisono.new_group([0, 1, 3])
    unisono.barrier()
    if group.rank == 3:
        die()
    if group.rank == 2:
        until(lambda: (tmp_path / "done.json").exists(), DEADLINE_S)
        return "was there all the time"
    with pytest.raises(unisono.PeerGone):
        unisono.barrier(most)
    smaller = most.shrink()
    if group.rank == 0:
        comes(tmp_path, "comes in vain")

    def until_somebody_has_come() -> None:
        while unisono.grow(smaller, size=3, timeout_s=0.5):
            pass

    with pytest.raises(unisono.ArgumentError, match=r"rank 2 \(pid \d+\) of the world did not make this call"):
        until_somebody_has_come()
    assert total(smaller) == 5.0
    if group.rank == 0:
        tell(tmp_path, "done")
    return "was refused"


@in_new_world(3, timeout_s=DEADLINE_S, gives=["alone", "alone", "refused"])
def test_only_a_new_process_can_join(tmp_path: Path) -> str:
    group = unisono.init()
    if group.rank == 2:
        with pytest.raises(unisono.ArgumentError, match="already rank 2 of 3"):
            unisono.join()
        unisono.shutdown()
        with pytest.raises(unisono.ArgumentError, match=r"process \d+ was rank 2 of it: start a new process"):
            unisono.join()
        tell(tmp_path, "done")
        return "refused"
    with pytest.raises(unisono.PeerGone):
        unisono.barrier()
    group = group.shrink()
    while not catch_up(group, (tmp_path / "done.json").exists()):
        assert unisono.grow(size=3, timeout_s=0.2) is group
    return "alone"


def test_without_a_job_there_is_no_door(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(unisono.ArgumentError, match="nothing in the environment says which job this is"):
        unisono.join()
    with pytest.raises(unisono.ArgumentError, match="rank=-1: a rank is at least 0"):
        unisono.join("a job that there is not", rank=-1)
    with pytest.raises(unisono.WaitTimeout, match="No process of this user and network namespace listens"):
        unisono.join("a job that there is not", timeout_s=0.1)


@in_new_world(2)
def test_sizes_and_times_that_are_none() -> None:
    """The first rank finds out, and all raise."""
    for size in (1, 3, True, "2", 2.0):
        with pytest.raises(unisono.ArgumentError, match=f"size={size!r}: this group has 2 ranks, and can have 2"):
            unisono.grow(size=size)  # type: ignore[arg-type]  # so it is
    for timeout_s in ("soon", float("nan")):
        with pytest.raises(unisono.ArgumentError, match="timeout_s"):
            unisono.grow(size=2, timeout_s=timeout_s)  # type: ignore[arg-type]  # so it is
    unisono.barrier()
