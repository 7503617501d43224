"""Stores where ranks meet: rank 0's, and the file of one launcher's job. Ranks are threads here.

A rank that does not reach the store, or finds another program there, is told why, and in time.
"""

import os
import secrets
import socket
import threading
import time
from contextlib import closing, suppress
from functools import partial

import pytest
from torch.distributed import TCPStore

from tests.ranks.rendezvous.conftest import expect_one_arena, together
from tests.ranks.rendezvous.test_meetings import attend, expect_missing, launch
from tests.support.waiting import until
from unisono.base.errors import ArgumentError, WaitTimeout
from unisono.base.fd_channel import Channel, PeerProcess
from unisono.ranks.group.initialize import meet_in_rounds
from unisono.ranks.rendezvous import stores
from unisono.ranks.rendezvous.launchers import Launch
from unisono.ranks.rendezvous.stores import job_store, serving

UNRESOLVED = "'node7.invalid' cannot be resolved"


@pytest.fixture
def no_way_is_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks do not come up late."""
    monkeypatch.setattr(stores, "_NO_WAY_S", 0.2)


@pytest.mark.parametrize(
    ("rank", "address", "words"),
    [
        (0, "node7.invalid", UNRESOLVED),
        (1, "node7.invalid", UNRESOLVED),
        (1, "255.255.255.255", "255.255.255.255 cannot be reached"),
    ],
)
@pytest.mark.usefixtures("no_way_is_soon")
def test_address_without_a_way_to_it_is_told(rank: int, address: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{words} .* MASTER_ADDR.* and MASTER_PORT"):
        meet_in_rounds(Launch(rank, 2, "", address, 29500), time.monotonic() + 3600.0)


@pytest.mark.usefixtures("no_way_is_soon")
def test_first_address_to_rank_0_counts() -> None:
    server = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    find = partial(stores._at_address, Launch(1, 2, "", by_mpi=True), port=server.port, deadline=time.monotonic() + 60)
    find(addresses=["255.255.255.255", "127.0.0.1"]).set("found", "yes")
    assert server.get("found") == b"yes"


def test_port_of_a_silent_program_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        error = attend(launch(taken.getsockname()[1], 0, 2), 2.0)
    assert "rank 0 cannot listen" in str(error)
    assert "Give each job its own port" in str(error)


def test_program_that_is_no_store_is_told_in_time(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        error = attend(launch(other.getsockname()[1], 1, 2), 0.3)
    assert isinstance(error, WaitTimeout)
    assert "does not respond as rank 0's store: it may be another program" in str(error)
    until(lambda: not any(thread.name == "unisono asks a store" for thread in threading.enumerate()))
    assert not capfd.readouterr().err, "torch has printed its backtrace"


@pytest.fixture
def job(threads_are_ranks) -> str:
    """A job's name."""
    return f"test {secrets.token_hex(8)}"


def test_two_jobs_at_once(job):
    met = together(lambda k: attend(Launch(k % 2, 2, "", job=f"{job} {k // 2}")), range(4))
    assert len({os.fstat(one.arena.fd).st_ino for one in met}) == 2
    expect_one_arena(met[:2])
    expect_one_arena(met[2:])


def test_wait_without_rank_0_ends_in_time(job):
    error = attend(Launch(1, 2, "", job=job), 0.3)
    expect_missing(error, 0)
    assert job in str(error)


def test_second_rank_0_of_a_job_is_refused(job):
    with serving(job):
        assert "is rank 0 of job" in str(attend(Launch(0, 2, "", job=job)))


def test_store_of_a_job_outlives_its_server(job):
    """A rank that has the store still reads there what rank 0 has written. The name of the socket is free again."""
    for word in ("first", "second"):
        with serving(job) as server:
            store = job_store(job, 1, time.monotonic() + 60)
            server.set(word, word)
        assert store.get(word) == word.encode()
    assert store.check(["first"])  # the process is the same


def stranger(job: str) -> socket.socket:
    """A connection to the socket where rank 0 hands out the store."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(f"\0{stores._socket_of(job)}")
    return sock


def test_strangers_at_a_job_hold_up_no_rank(job: str) -> None:
    with serving(job) as server:
        strangers = []
        for number in range(200):
            strangers.append(stranger(job))
            with suppress(BrokenPipeError):  # it has been served already
                strangers[-1].send(b"\xff" * number or b" ")
            if number % 2:
                strangers.pop().close()
        server.set("key", "word")
        assert job_store(job, 1, time.monotonic() + 60).get("key") == b"word"
        for one in strangers:
            one.close()


def test_other_users_do_not_take_part_in_a_job(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(job):
        monkeypatch.setattr(Channel, "peer", PeerProcess(1, os.getuid() + 1))
        with pytest.raises(ArgumentError, match="belongs to another process"):
            job_store(job, 1, time.monotonic() + 60)
        with closing(stranger(job)) as other:
            assert other.recvmsg(1000, 1000)[:2] == (b"", [])
