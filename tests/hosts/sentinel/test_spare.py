"""A sentinel that is killed, also with the process that waits beside it: another one goes on, and nothing is lost."""

import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from tests.support.fake_hosts import WORLD, FakeHosts, send_with_spare, sentinel_of, spare_of
from tests.support.waiting import until
from unisono.base.records import CallRecord, DepartureKind, GivenUp
from unisono.hosts.far import Far
from unisono.hosts.sentinel.estate import Estate, turns_of

SOON_S = 3.0  # less than the time after which a spare process gives up a sentinel that is silent
SILENT_S = 30.0  # where no host may be lost, however late ranks look


def kill(fake: FakeHosts, host: int, what: str, beside: Far) -> None:
    """Kill a sentinel, its spare process, or both, until others are there. beside: of another rank of host 1, which
    sees at the same time that both are gone.
    """
    far = fake.far[host]
    pid = sentinel_of(far)
    if what == "sentinel":
        os.kill(pid, signal.SIGKILL)
        until(lambda: far.sentinel_pid != pid, SOON_S)
        return
    spare = spare_of(pid)
    if what == "spare":
        os.kill(spare, signal.SIGKILL)
        until(lambda: spare_of(pid) != spare)
        return
    send_with_spare(far, signal.SIGKILL)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: until(lambda: one.sentinel_pid != pid), (far, beside) if host == 1 else (far,)))


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
        said, dead = [0, 0, 0], dict[int, int]()
        for turn in range(20):
            host, falls, group = rng.randrange(3), rng.randrange(3), 8 + turn
            what = rng.choice(["sentinel", "spare", "both"])
            if what != "spare" and rng.random() < 0.5:
                os.kill(sentinel_of(fake.far[falls]), signal.SIGSTOP)  # it reads nothing any more
            said[host] += 1
            give_up = GivenUp(said[host], False, frozenset(), f"turn {turn}")
            fake.arenas[host].board(fake.hosts.members[host][0]).set_gave_up(give_up)
            fake.far[host].wake(WORLD)
            for far, arena in zip((*fake.far, beside), (*fake.arenas, fake.arenas[1]), strict=True):
                far.register(group, arena.end, range(6))
            ticket = fake.far[falls].ask(WORLD)
            if turn in (5, 10, 15):
                rank = rng.choice([rank for rank in fake.sleepers if rank not in dead])
                fake.arenas[fake.hosts.host_of(rank)].board(rank).set_call(turn, CallRecord("scan"))
                dead[rank] = turn
                fake.sleepers[rank].kill()
            kill(fake, falls, what, beside)
            until(lambda: sentinel_of(fake.far[1]) == sentinel_of(beside))
            until(lambda falls=falls, ticket=ticket: fake.far[falls].answered(ticket))
            for other in range(3):
                fake.refresh(other)
                fake.refresh(other, group)
                for one, number in enumerate(said):
                    board = fake.arenas[other].board(fake.hosts.members[one][0])
                    assert board.gave_up.number == number, (turn, other, one)
                for rank, call in dead.items():
                    assert fake.arenas[other].board(rank).call(call) == CallRecord("scan")
            for far in (*fake.far, beside):
                far.forget(group)
        until(lambda: all(far.is_free(8) for far in fake.far))
        for far in (*fake.far, beside):
            until(lambda far=far: all(far.left(rank) for rank in dead))
            gone = {rank: far.left(rank) for rank in range(6) if far.left(rank)}
            assert gone.keys() == dead.keys()
            assert all(how.words == "was killed by signal 9 (SIGKILL)" for how in gone.values())
            assert far.cut_off is None
        beside.close()


def test_spare_gives_up_after_many_deaths() -> None:
    """Each process is killed as soon as it serves."""
    with FakeHosts("1+1", silent_s=SILENT_S) as fake:
        far = fake.far[1]

        def is_cut_off() -> bool:
            with suppress(ProcessLookupError):
                os.kill(far.sentinel_pid, signal.SIGKILL)
            return far.cut_off is not None

        until(is_cut_off)
        assert "20 of its processes in a row have ended within 1 s" in str(far.cut_off)


@pytest.mark.parametrize("both", [False, True], ids=["sentinel", "and its spare process"])
def test_stopped_sentinel_is_replaced(both: bool) -> None:
    """By the process beside it, or by its ranks where that is stopped, too. Nobody is lost."""
    with FakeHosts("1+1", silent_s=3.0) as fake:
        fake.refresh(0)
        before = sentinel_of(fake.far[1])
        if both:
            spare_of(before)
            send_with_spare(fake.far[1], signal.SIGSTOP)
        else:
            os.kill(before, signal.SIGSTOP)
        fake.refresh(1)
        assert sentinel_of(fake.far[1]) != before
        fake.refresh(0)
        assert fake.far[0].left(1) is fake.far[1].left(0) is None


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
