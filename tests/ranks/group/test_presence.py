"""A peer that cannot speak any more is found to have gone by its process; an ending program tells its peers."""

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, PropertyMock

import pytest

from unisono.base.records import Departure, DepartureKind
from unisono.engine.memory.arena import Arena
from unisono.engine.process.alive import (
    PARENT_S,
    ending_in_words,
    exit_status,
    has_ended,
    is_ending,
    start_ticks,
    watch_process,
)
from unisono.ranks.group.rank_liveness import RankLiveness
from unisono.ranks.group.world_group import leave_at_exit

MINE = start_ticks(os.getpid())


@pytest.fixture
def group() -> Iterator[Any]:
    """A group of two; rank 1 is a process that waits until its input ends."""
    arena = Arena.create(2)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (board := arena.board(1)).set_process(child.pid, start_ticks(child.pid))
    made = SimpleNamespace(board=board, liveness=RankLiveness(arena), child=child)
    made.gone = lambda: made.liveness.gone(1)
    assert made.gone() is None  # it is there, and from now on it is watched
    yield made
    child.kill()
    child.communicate()
    made.liveness.close()
    arena.close()


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill it; its parent does not ask for its status."""
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_departure_that_is_being_written_again() -> None:
    """While the sentinel writes a record again, the board has none."""
    how = Departure(DepartureKind.DIED, "was killed")
    board = Mock(pid=0)
    type(board).gone = PropertyMock(side_effect=[how, None, None])
    assert RankLiveness(SimpleNamespace(size=2, board=lambda _: board)).left(1) == how


def test_system_tells_an_end_nobody_asked_about(group: Any) -> None:
    fd = os.pidfd_open(group.child.pid)
    kill(group.child)
    assert has_ended(fd)
    os.close(fd)
    assert start_ticks(group.child.pid) == 0
    assert watch_process(group.child.pid, MINE) is None
    assert group.gone() == (DepartureKind.DIED, "was killed by signal 9 (SIGKILL)")
    assert exit_status(group.child.pid, MINE - 1, None) is None, "another process has this number"


def test_system_tells_an_end_the_parent_knows(group: Any) -> None:
    assert not is_ending(group.child.pid)
    group.child.communicate(b"\n")
    assert is_ending(group.child.pid)
    assert str(group.gone()) in ("exited with code 0", "died")  # Linux tells since 6.15


def test_end_by_a_real_time_signal_in_words() -> None:
    assert ending_in_words(35) == "was killed by signal 35 (real-time)"


def test_number_of_another_process_is_no_life(group: Any) -> None:
    """Nor that of a thread."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    for number, start in ((thread.native_id, MINE), (os.getpid(), MINE - 1)):
        group.board.set_process(number, start)
        assert group.gone().how == DepartureKind.DIED
    end.set()
    thread.join()


def test_deaths_are_seen_where_descriptors_are_few(group: Any) -> None:
    """One is not enough to watch the process and to read when it has started."""
    group.liveness.close()  # it does not watch it any more
    limits, free = resource.getrlimit(resource.RLIMIT_NOFILE), os.dup(0)
    os.close(free)
    seen = []
    try:
        for most in (free + 1, 0):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
            seen.append(group.gone())
        kill(group.child)
        seen.append(group.gone())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [one is None for one in seen] == [True, True, False]


def test_descriptor_in_use_is_not_closed(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be another file's by then, such as one that can be read."""
    looks = []

    def close_and_look(fd: int) -> bool:
        group.liveness.close()
        looks.append(os.readlink(f"/proc/self/fd/{fd}"))
        return has_ended(fd)

    group.liveness.close()
    monkeypatch.setattr("unisono.ranks.group.rank_liveness.has_ended", close_and_look)
    before = len(os.listdir("/proc/self/fd"))
    assert group.gone() is None
    assert "pidfd" in looks[0]
    assert len(os.listdir("/proc/self/fd")) <= before


def test_only_telling_parents_are_waited_for(group: Any) -> None:
    group.child.kill()
    group.child.wait()
    began = time.monotonic()
    assert group.gone() is not None
    assert time.monotonic() - began < PARENT_S
    group.board.set_process(group.child.pid, MINE)  # whose status nobody knows
    group.board.parent_tells_end = 1
    threading.Timer(0.1, group.board.set_gone, (DepartureKind.DIED, "was shot")).start()
    assert str(group.gone()) == "was shot"


@pytest.mark.parametrize(
    ("error", "words"),
    [(KeyError("mine"), "raised KeyError: 'mine'"), (ValueError("two\n  lines"), "raised ValueError: two lines"),
     (KeyboardInterrupt(), "raised KeyboardInterrupt")],
)  # fmt: skip
def test_exception_that_ends_a_program_is_told(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, words: str
) -> None:
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    world = Mock(closed=False, rank=1)
    world.all_of_it = [world]
    leave_at_exit(world)
    world.tell_departure.assert_called_once_with(DepartureKind.RAISED, words)
    world.close.assert_called_once_with()
