"""A sentinel that is killed, also with the process that waits beside it: another one goes on, and nothing is lost."""

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

from tests.support.fake_hosts import WORLD, FakeHosts, send_with_spare, sentinel_of, spare_of
from tests.support.waiting import until
from unisono.base.records import CallRecord, DepartureKind, GivenUp
from unisono.hosts.far import Far

SOON_S = 3.0  # less than the time after which silent hosts are lost
SILENT_S = 30.0  # where that must not happen, however late ranks look


def kill(fake: FakeHosts, host: int) -> None:
    """Kill a sentinel; another process must go on soon."""
    before, began = sentinel_of(fake.far[host]), time.monotonic()
    os.kill(before, signal.SIGKILL)
    until(lambda: fake.far[host].sentinel_pid != before)
    assert time.monotonic() - began < SOON_S


def kill_spare(fake: FakeHosts, host: int) -> None:
    """Kill the process that waits beside a sentinel; there must be another one soon."""
    pid = sentinel_of(fake.far[host])
    before = spare_of(pid)
    os.kill(before, signal.SIGKILL)
    until(lambda: spare_of(pid) != before)


def test_next_process_knows_dead_ranks() -> None:
    with FakeHosts("1+2") as fake:
        fake.far[1].register(8, fake.arenas[1].end, [0, 1, 2])
        fake.far[0].register(8, fake.arenas[0].end, [0, 1, 2])
        fake.refresh(0, 8)
        fake.arenas[1].board(2).set_call(3, CallRecord("scan"))
        fake.sleepers[2].kill()
        until(lambda: fake.far[0].left(2) is not None)
        kill(fake, 1)
        fake.refresh(0)
        assert fake.arenas[0].board(2).call(3) == CallRecord("scan")
        fake.refresh(0, 8)
        assert fake.far[1].left(2) == fake.far[0].left(2)
        fake.far[1].forget(8)
        until(lambda: fake.far[1].is_free(8))


def test_a_rank_says_again_what_was_not_heard() -> None:
    """The sentinel has not read it when it is killed."""
    with FakeHosts("1+1") as fake:
        fake.refresh(0)
        pid = sentinel_of(fake.far[1])
        os.kill(pid, signal.SIGSTOP)
        fake.far[1].register(8, fake.arenas[1].end, [0, 1])
        fake.arenas[1].board(1).set_gave_up(GivenUp(9, False, frozenset({0}), "tired"))
        fake.far[1].wake(WORLD)
        ticket = fake.far[1].ask(WORLD)
        os.kill(pid, signal.SIGKILL)
        until(lambda: fake.far[1].answered(ticket))
        until(lambda: fake.arenas[0].board(1).gave_up.reason == "tired")
        fake.far[0].register(8, fake.arenas[0].end, [0, 1])
        fake.refresh(0, 8)
        pid = sentinel_of(fake.far[1])
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
        fake.far[1].close()
        until(lambda: fake.far[0].left(1) is not None)
        assert fake.far[0].left(1).how is DepartureKind.LEFT


def test_killed_again_and_again() -> None:
    """At random, while ranks speak, ask and die. A spare process that is killed is replaced, too."""
    rng = random.Random(3)
    with FakeHosts("1+3+2") as fake:
        for host in range(3):
            fake.refresh(host)
        said, dead = [0, 0, 0], set[int]()
        for turn in range(20):
            host = rng.randrange(3)
            rank = fake.hosts.members[host][0]
            said[host] += 1
            fake.arenas[host].board(rank).set_gave_up(GivenUp(said[host], False, frozenset(), f"turn {turn}"))
            fake.far[host].wake(WORLD)
            if turn in (5, 10, 15):
                dead.add(rng.choice([rank for rank in fake.sleepers if rank not in dead]))
                for one in dead:
                    fake.sleepers[one].kill()
            kill_spare(fake, rng.randrange(3))
            kill(fake, rng.randrange(3))
            for other in range(3):
                fake.refresh(other)
                for one, number in enumerate(said):
                    board = fake.arenas[other].board(fake.hosts.members[one][0])
                    assert board.gave_up.number == number, (turn, other, one)
        for other in range(3):
            until(lambda other=other: all(fake.far[other].left(rank) for rank in dead))
            gone = {rank: fake.far[other].left(rank) for rank in range(6) if fake.far[other].left(rank)}
            assert gone.keys() == dead
            assert all(how.words == "was killed by signal 9 (SIGKILL)" for how in gone.values())
            assert fake.far[other].cut_off is None


def test_next_process_goes_on_for_a_stopped_one() -> None:
    with FakeHosts("1+1", silent_s=3.0) as fake:
        fake.refresh(0)
        pid = sentinel_of(fake.far[1])
        os.kill(pid, signal.SIGSTOP)
        until(lambda: fake.far[1].sentinel_pid != pid)
        fake.refresh(1)
        fake.refresh(0)
        assert fake.far[0].left(1) is fake.far[1].left(0) is None


def see_another(far: Far, before: int) -> None:
    until(lambda: far.sentinel_pid != before)


def test_ranks_start_both_processes_again() -> None:
    """Two ranks of the host see at the same time that both are gone. Dead ranks and new groups are remembered."""
    with FakeHosts("1+2", silent_s=SILENT_S) as fake:
        beside = Far(fake.arenas[1], fake.hosts, 1, fake.names[1], SILENT_S)
        fake.sleepers[2].kill()
        until(lambda: fake.far[0].left(2) is not None)
        for turn in range(5):
            for far in (*fake.far, beside):
                far.register(8 + turn, fake.arenas[far is not fake.far[0]].end, [0, 1, 2])
            fake.refresh(0, 8 + turn)
            before = sentinel_of(fake.far[1])
            spare_of(before)
            send_with_spare(fake.far[1], signal.SIGKILL)
            began = time.monotonic()
            with ThreadPoolExecutor(2) as pool:
                assert [*pool.map(see_another, (fake.far[1], beside), (before, before))] == [None, None]
            assert time.monotonic() - began < SILENT_S
            assert sentinel_of(fake.far[1]) == beside.sentinel_pid
            for far in (fake.far[1], beside):
                far.forget(8 + turn)
            fake.arenas[1].board(1).set_gave_up(GivenUp(turn, False, frozenset(), "again"))
            fake.refresh(0)
            assert fake.arenas[0].board(1).gave_up.number == turn
            fake.refresh(0, 8 + turn)
            assert fake.far[1].left(2) == fake.far[0].left(2)
            assert fake.far[0].left(1) is fake.far[1].left(0) is None
        beside.close()


def test_ranks_replace_stopped_processes() -> None:
    with FakeHosts("1+1", silent_s=3.0) as fake:
        fake.refresh(0)
        before = sentinel_of(fake.far[1])
        spare_of(before)
        send_with_spare(fake.far[1], signal.SIGSTOP)
        fake.refresh(1)
        assert sentinel_of(fake.far[1]) != before
        fake.refresh(0)
        assert fake.far[0].left(1) is fake.far[1].left(0) is None


def test_a_sentinel_that_cannot_be_started_again() -> None:
    with FakeHosts("1+1") as fake, patch("unisono.hosts.far.start_again", side_effect=OSError):
        fake.refresh(1)
        spare_of(sentinel_of(fake.far[1]))
        send_with_spare(fake.far[1], signal.SIGKILL)
        until(lambda: fake.far[1].cut_off is not None)
        assert "has ended" in str(fake.far[1].cut_off)
        until(lambda: fake.lost(0) == {1})


def test_a_spare_process_ends_with_its_sentinel() -> None:
    with FakeHosts("1+1") as fake:
        pids = [sentinel_of(far) for far in fake.far]
        spares = [os.pidfd_open(spare_of(pid)) for pid in pids]
        fake.refresh(0)
    for fd in spares:
        until(lambda fd=fd: not alive(fd))
        os.close(fd)


def alive(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    return True
