"""A peer that cannot speak any more is found to have gone by its process; an ending program tells its peers."""

import os
import resource
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from unisono.base.records import Departure, DepartureKind
from unisono.engine.memory.arena import Arena
from unisono.engine.process.alive import ending_in_words, exit_status, has_ended, is_ending, start_ticks, watch_process
from unisono.ranks.group.rank_liveness import RankLiveness
from unisono.ranks.group.world_group import leave_at_exit

MINE = start_ticks(os.getpid())


@pytest.fixture
def group() -> Any:
    """A group of two; rank 1 is a process that waits until its input ends."""
    arena = Arena.create(2)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    arena.board(1).set_process(child.pid, start_ticks(child.pid))
    made = SimpleNamespace(arena=arena, liveness=RankLiveness(arena), child=child)
    made.kill = lambda: (child.kill(), child.wait())
    yield made
    child.kill()
    child.communicate()
    made.liveness.close()
    arena.close()


def test_living_rank_is_there_and_killed_one_not(group: Any) -> None:
    assert group.liveness.gone(1) is None
    group.kill()
    how = group.liveness.gone(1)
    assert how.how == DepartureKind.DIED


def test_departure_that_is_being_written_again() -> None:
    """While the sentinel writes a record again, the board has none."""
    how = Departure(DepartureKind.DIED, "was killed")

    class Changing:
        pid, reads = 0, iter([how, None, None])

        @property
        def gone(self) -> Departure | None:
            return next(self.reads)

    board, layout = Changing(), SimpleNamespace(size=2)
    layout.board = lambda _: board
    assert RankLiveness(layout).left(1) == how  # type: ignore[arg-type]  # it needs no more


def test_system_tells_an_end_nobody_asked_about(group: Any) -> None:
    assert group.liveness.gone(1) is None
    group.child.kill()
    os.waitid(os.P_PID, group.child.pid, os.WEXITED | os.WNOWAIT)
    assert str(group.liveness.gone(1)) == "was killed by signal 9 (SIGKILL)"
    assert exit_status(group.child.pid, MINE - 1, None) is None, "another process has this number"


def test_system_tells_an_end_the_parent_knows(group: Any) -> None:
    assert group.liveness.gone(1) is None  # from now on it is watched
    assert not is_ending(group.child.pid)
    group.child.communicate(b"\n")
    assert is_ending(group.child.pid)
    assert str(group.liveness.gone(1)) in ("exited with code 0", "died")  # Linux tells since 6.15


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3 << 8, "exited with code 3"),
        (9, "was killed by signal 9 (SIGKILL)"),
        (11 | 0x80, "was killed by signal 11 (SIGSEGV)"),
        (35, "was killed by signal 35 (real-time)"),
    ],
)
def test_a_wait_status_in_words(status: int, words: str) -> None:
    assert ending_in_words(status) == words


def test_number_of_a_thread_is_no_life(group: Any) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        group.arena.board(1).set_process(thread.native_id, MINE)
        how = group.liveness.gone(1)
    finally:
        end.set()
        thread.join()
    assert how.how == DepartureKind.DIED


def test_number_of_another_process_is_no_life(group: Any) -> None:
    group.arena.board(1).set_process(os.getpid(), MINE - 1)
    how = group.liveness.gone(1)
    assert how.how == DepartureKind.DIED


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    fd = os.pidfd_open(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(fd)
    assert start_ticks(child.pid) == 0
    assert watch_process(child.pid, MINE) is None
    os.close(fd)
    child.wait()


def test_death_needs_more_than_one_descriptor(group: Any) -> None:
    """The process is there. The only descriptor that is free is not enough to read when it has started."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
    try:
        gone = group.liveness.gone(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert gone is None


def test_death_is_seen_without_descriptors(group: Any) -> None:
    with no_descriptors():
        assert group.liveness.gone(1) is None
    group.child.kill()
    os.waitid(os.P_PID, group.child.pid, os.WEXITED | os.WNOWAIT)  # its parent does not ask for its status
    with no_descriptors():
        assert group.liveness.gone(1) is not None


def test_descriptor_in_use_is_not_closed(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be another file's by then, such as one that can be read."""
    looks = []

    def close_and_look(fd: int) -> bool:
        group.liveness.close()
        looks.append(os.readlink(f"/proc/self/fd/{fd}"))
        return has_ended(fd)

    monkeypatch.setattr("unisono.ranks.group.rank_liveness.has_ended", close_and_look)
    before = len(os.listdir("/proc/self/fd"))
    assert group.liveness.gone(1) is None
    assert "pidfd" in looks[0]
    assert len(os.listdir("/proc/self/fd")) <= before


def test_only_telling_parents_are_waited_for(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    board = group.arena.board(1)

    def sleep(duration_s: float) -> None:
        slept.append(duration_s)
        board.set_gone(DepartureKind.DIED, "was killed by signal 9")

    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)  # other threads of this process may sleep, too
    monkeypatch.setattr("unisono.ranks.group.rank_liveness.time", clock)
    group.kill()
    assert str(group.liveness.gone(1)) == "died"
    assert not slept
    board.parent_tells_end = 1
    assert str(group.liveness.gone(1)) == "was killed by signal 9"
    assert len(slept) == 1


class no_descriptors:  # noqa: N801  reads like the function that it stands for
    def __enter__(self) -> None:
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, self.limits[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)


class World:
    """A world of one group; told: what its peers hear."""

    rank, closed = 1, False

    def __init__(self) -> None:
        self.told: list[tuple[DepartureKind, str]] = []
        self.all_of_it = [self]

    def tell_departure(self, how: DepartureKind, words: str) -> None:
        self.told.append((how, words))

    def give_up(self, error: BaseException) -> None:
        del error

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("mine"), "raised KeyError: 'mine'"),
        (ValueError("two\n  lines"), "raised ValueError: two lines"),
        (KeyboardInterrupt(), "raised KeyboardInterrupt"),
    ],
)
def test_exception_that_ends_a_program_is_told(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, words: str
) -> None:
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    world: Any = World()
    leave_at_exit(world)
    assert world.told == [(DepartureKind.RAISED, words)]
    assert world.closed
