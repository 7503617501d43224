"""A sentinel that is killed, also with the process that waits beside it: another one goes on, and nothing is lost."""

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from unittest.mock import patch

import pytest

from tests.support.fake_hosts import WORLD, FakeHosts, send_with_spare, sentinel_of, spare_of
from tests.support.waiting import until
from unisono.base.records import DepartureKind, GivenUp
from unisono.hosts.far import Far
from unisono.hosts.sentinel.estate import Estate, turns_of

SOON_S = 3.0  # less than the time after which silent hosts are lost
SILENT_S = 30.0  # where that must not happen, however late ranks look


def kill(fake: FakeHosts, host: int) -> None:
    """Kill a sentinel; another process must go on soon."""
    before, began = sentinel_of(fake.far[host]), time.monotonic()
    os.kill(before, signal.SIGKILL)
    see_another(fake.far[host], before)
    assert time.monotonic() - began < SOON_S


def see_another(far: Far, before: int) -> None:
    """Wait until another process goes on."""
    until(lambda: far.sentinel_pid != before)


def kill_both(fake: FakeHosts, host: int) -> None:
    """Kill a sentinel and the process beside it; its ranks start both again."""
    before = sentinel_of(fake.far[host])
    spare_of(before)
    send_with_spare(fake.far[host], signal.SIGKILL)
    see_another(fake.far[host], before)


def kill_spare(fake: FakeHosts, host: int) -> None:
    """Kill the process that waits beside a sentinel; there must be another one soon."""
    pid = sentinel_of(fake.far[host])
    before = spare_of(pid)
    os.kill(before, signal.SIGKILL)
    until(lambda: spare_of(pid) != before)


def test_rank_leaves_though_its_sentinel_falls() -> None:
    """The sentinel has not read it when it is killed."""
    with FakeHosts("1+1") as fake:
        fake.refresh(0)
        pid = sentinel_of(fake.far[1])
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
        fake.far[1].close()
        until(lambda: fake.far[0].left(1) is not None)
        assert fake.far[0].left(1).how is DepartureKind.LEFT


def test_killed_again_and_again() -> None:
    """At random, while ranks speak, ask, use new groups and die: a sentinel, its spare process, or both of them, which
    two ranks of the host see. What a sentinel has not read, its ranks say again.
    """
    rng = random.Random(3)
    with FakeHosts("1+3+2", silent_s=SILENT_S) as fake:
        beside = Far(fake.arenas[1], fake.hosts, fake.hosts.members[1][0], fake.names[1], SILENT_S)
        said, dead = [0, 0, 0], set[int]()
        for turn in range(20):
            host, falls, group = rng.randrange(3), rng.randrange(3), 8 + turn
            kills = rng.choice([kill, kill_spare, kill_both])
            if kills is not kill_spare and rng.random() < 0.5:
                os.kill(sentinel_of(fake.far[falls]), signal.SIGSTOP)  # it reads nothing any more
            said[host] += 1
            give_up = GivenUp(said[host], False, frozenset(), f"turn {turn}")
            fake.arenas[host].board(fake.hosts.members[host][0]).set_gave_up(give_up)
            fake.far[host].wake(WORLD)
            for far, arena in zip((*fake.far, beside), (*fake.arenas, fake.arenas[1]), strict=True):
                far.register(group, arena.end, range(6))
            ticket = fake.far[falls].ask(WORLD)
            if turn in (5, 10, 15):
                dead.add(rng.choice([rank for rank in fake.sleepers if rank not in dead]))
                for one in dead:
                    fake.sleepers[one].kill()
            with ThreadPoolExecutor(1) as pool:
                before = beside.sentinel_pid
                looks = pool.submit(see_another, beside, before) if (kills, falls) == (kill_both, 1) else None
                kills(fake, falls)
                assert looks is None or looks.result() is None
            until(lambda falls=falls, ticket=ticket: fake.far[falls].answered(ticket))
            for other in range(3):
                fake.refresh(other)
                fake.refresh(other, group)
                for one, number in enumerate(said):
                    board = fake.arenas[other].board(fake.hosts.members[one][0])
                    assert board.gave_up.number == number, (turn, other, one)
            for far in (*fake.far, beside):
                far.forget(group)
        until(lambda: all(far.is_free(8) for far in fake.far))
        for far in (*fake.far, beside):
            until(lambda far=far: all(far.left(rank) for rank in dead))
            gone = {rank: far.left(rank) for rank in range(6) if far.left(rank)}
            assert gone.keys() == dead
            assert all(how.words == "was killed by signal 9 (SIGKILL)" for how in gone.values())
            assert far.cut_off is None
        beside.close()


def test_next_process_goes_on_for_a_stopped_one() -> None:
    with FakeHosts("1+1", silent_s=3.0) as fake:
        fake.refresh(0)
        pid = sentinel_of(fake.far[1])
        os.kill(pid, signal.SIGSTOP)
        until(lambda: fake.far[1].sentinel_pid != pid)
        fake.refresh(1)
        fake.refresh(0)
        assert fake.far[0].left(1) is fake.far[1].left(0) is None


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


SETUP = {"hosts": [[0], [1]], "names": ["a", "b"]}


@pytest.mark.quick
def test_next_process_reads_what_was_written_last(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Estate.create(SETUP)) as written, closing(Estate(os.dup(written.fd))) as read:
        assert read.setup == SETUP
        assert read.read() is None
        for state in ("long" * 10_000, "short", "", "longer" * 20_000):
            written.write([state])
            assert read.read() == [state]
        write = os.pwrite
        with monkeypatch.context() as killed:  # in the middle of a state
            killed.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:7], at) and 1 / 0)
            with pytest.raises(ZeroDivisionError):
                written.write("never")
        assert read.read() == ["longer" * 20_000]
        written.turns[0], written.highest[1] = 5, 9
        assert (turns_of(read.fd), [*read.highest]) == (5, [0, 9])
        assert os.fstat(written.fd).st_blocks * 512 < 1 << 20
