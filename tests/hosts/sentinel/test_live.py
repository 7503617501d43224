"""Sentinels as processes: what the ranks of one host learn of the others, and that nothing stays behind."""

import os
import select
import signal
from collections.abc import Callable

import pytest

from tests.support.fake_hosts import WORLD, FakeHosts, send_with_spare
from tests.support.waiting import until
from unisono.base.config import Config
from unisono.base.records import DepartureKind, GivenUp
from unisono.engine.memory.arena import Arena
from unisono.hosts.far import Far
from unisono.hosts.sentinel.main import Watching
from unisono.hosts.sentinel.regions import Regions
from unisono.hosts.sentinel.state_machine import Ended


def test_wake_pushes_without_a_ticket() -> None:
    with FakeHosts("1+1+2") as fake:
        fake.refresh(0)
        fake.arenas[0].board(0).set_gave_up(GivenUp(9, False, frozenset({2}), "tired"))
        fake.far[0].wake(WORLD)
        for arena in fake.arenas:  # also on the rank's own host, where other ranks may wait
            until(lambda arena=arena: arena.news.value)
            assert arena.board(0).gave_up == GivenUp(9, False, frozenset({2}), "tired")


def test_deaths_are_counted_on_each_host() -> None:
    with FakeHosts("1+3") as fake:
        fake.refresh(0)
        for count, rank in enumerate((2, 3), 1):
            fake.sleepers[rank].kill()
            for arena in fake.arenas:
                until(lambda arena=arena, count=count: arena.news.value >= count)
                assert arena.board(rank).gone is not None


def test_leaving_with_an_unread_answer() -> None:
    """The kernel says so as an error, before what the rank has said at last."""
    with FakeHosts("1+1") as fake:
        fake.far[0].ask(WORLD)
        assert select.select([fake.far[0]._socket], [], [], 20.0)[0]
        send_with_spare(fake.far[0], signal.SIGSTOP)
        fake.far[0].close()
        send_with_spare(fake.far[0], signal.SIGCONT)
        until(lambda: fake.far[1].left(0) is not None, 20.0)
        assert fake.far[1].left(0).how is DepartureKind.LEFT


def test_stopped_host_learns_that_others_went_on() -> None:
    with FakeHosts("1+1+1") as fake:
        fake.refresh(2)
        send_with_spare(fake.far[2], signal.SIGSTOP)
        until(lambda: fake.lost(0) == {2})
        send_with_spare(fake.far[2], signal.SIGCONT)
        until(lambda: "the others go on without it" in str(fake.far[2].cut_off))
        assert fake.far[0].cut_off is fake.far[1].cut_off is None
        assert not fake.lost(2)
        until(lambda: all(fake.arenas[2].board(rank).gone for rank in (0, 1)))
        assert fake.arenas[2].board(1).gone == (DepartureKind.DIED, "is on host b (rank 1)")


def test_crash_of_the_sentinel_is_reported(sentinels_first: Callable[[str], None]) -> None:
    """Nobody reads the standard error of a sentinel."""
    copies = "from unisono.hosts.sentinel.board_replicas import Copies"
    sentinels_first(f"{copies}; Copies.push = lambda *_: {{}}['no such push']")
    with FakeHosts("1+1") as fake:
        fake.refresh(0)
        fake.far[0].wake(WORLD)
        until(lambda: fake.far[0].left(1) is not None)
        pid = fake.far[0].sentinel_pid
        words = f"its sentinel (process {pid}) has crashed: KeyError: 'no such push' (<string>:1 in "
        assert words in str(fake.far[0].left(1))
        assert "main.py:" in str(fake.far[0].cut_off)
        until(lambda: not fake.lives(0))


def test_a_child_of_a_rank_does_not_speak_for_it() -> None:
    with FakeHosts("1+1") as fake:
        inherited = Far(fake.arenas[1], fake.hosts, 1, fake.names[1], 1.5)
        inherited._pid = 0  # as in another process than the one that has made it
        inherited.close()
        fake.refresh(1)
        assert fake.far[0].left(1) is None


def test_sentinel_ignores_termination_signals() -> None:
    with FakeHosts("1+1") as fake:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.pidfd_send_signal(fake.pidfds[0], number)
        fake.refresh(0)
        fake.refresh(1)


def test_parents_report_of_an_end_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena.create(3, Config(heap_bytes=1 << 20))
    assert arena.map is not None
    regions = Regions(arena.map, arena.start, arena.size)
    monkeypatch.setattr("unisono.hosts.sentinel.main.exit_status", lambda *_: None)
    for rank in (0, 1):
        arena.board(rank).parent_tells_end = 1
    watching = Watching(dict.fromkeys(range(3), (os.getpid(), 1)), regions)  # it has started at another time
    assert watching.ended(5.0) == [Ended(2, "died")]
    assert watching.impatient
    arena.board(1).set_gone(DepartureKind.DIED, "was shot")
    assert watching.ended(5.9) == [Ended(1, "died")]  # the board's words count
    assert watching.ended(5.9) == []
    assert watching.ended(6.1) == [Ended(0, "died")]
    assert not watching.impatient
    arena.close()
