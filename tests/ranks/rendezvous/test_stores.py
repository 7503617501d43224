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
from typing import Any
from unittest.mock import patch

import pytest
from torch.distributed import HashStore, TCPStore

from tests.ranks.rendezvous.conftest import Acting, expect_one_arena, meet, together
from tests.ranks.rendezvous.test_meetings import SOON_S, attend, expect_missing, launch
from tests.support.waiting import until
from unisono.base.errors import ArgumentError, WaitTimeout
from unisono.base.fd_channel import Channel, PeerProcess
from unisono.ranks.group.initialize import meet_in_rounds
from unisono.ranks.rendezvous import stores
from unisono.ranks.rendezvous.launchers import Launch
from unisono.ranks.rendezvous.stores import job_store, serving

no_way_is_soon = patch.object(stores, "_NO_WAY_S", 0.2)


def test_wait_for_a_silent_store_ends_in_time() -> None:
    began, ended = time.monotonic(), threading.Event()
    with pytest.raises(WaitTimeout, match=r"has not answered for .* is stopped, or its host is cut off") as caught:
        meet(1, 2, Acting(HashStore(), lambda *_: ended.wait()), 1.0)
    assert caught.value.missing == (0,)
    assert time.monotonic() - began < SOON_S
    ended.set()


@no_way_is_soon
def test_a_name_that_does_not_resolve_is_told() -> None:
    began = time.monotonic()
    for rank in range(2):
        nowhere = Launch(rank, 2, "", "node7.invalid", 29500)
        with pytest.raises(ArgumentError, match=r"'node7.invalid' cannot be resolved .* MASTER_ADDR.* and MASTER_PORT"):
            meet_in_rounds(nowhere, began + 3600.0)
    assert time.monotonic() - began < SOON_S


@no_way_is_soon
def test_a_host_without_a_way_to_it_is_told() -> None:
    with pytest.raises(ArgumentError, match=r"255.255.255.255 cannot be reached .* MASTER_ADDR.* and MASTER_PORT"):
        meet_in_rounds(Launch(1, 2, "", "255.255.255.255", 29500), time.monotonic() + 3600.0)


def test_program_that_is_no_store_is_told_in_time(capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as other:
        error = attend(launch(other.getsockname()[1], 1, 2), 0.3)
    assert isinstance(error, WaitTimeout)
    assert "does not respond as rank 0's store: it may be another program" in str(error)
    assert time.monotonic() - began < SOON_S
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


def test_several_hosts_meet_at_the_store_of_a_job(job: str) -> None:
    """UNISONO_HOST_ID, or a container that shares only the network, tells them apart."""

    def act(rank: int) -> Any:
        return attend(Launch(rank, 2, "", job=job), special=lambda rank: {"host_id": f"{rank}"})

    for rank, met in enumerate(together(act, range(2))):
        assert met.hosts.members == ((0,), (1,))
        met.store.set(f"{rank}", "there")
        assert met.address
        met.arena.close()
    assert met.store.check(["0", "1"])


@no_way_is_soon
def test_first_address_to_rank_0_counts() -> None:
    server = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    find = partial(stores._at_address, Launch(1, 2, "", by_mpi=True), port=server.port, deadline=time.monotonic() + 60)
    find(addresses=["255.255.255.255", "127.0.0.1"]).set("found", "yes")
    assert server.get("found") == b"yes"
    with pytest.raises(ArgumentError, match=r"could not reach .* 255.255.255.255, .* MASTER_ADDR.* and MASTER_PORT"):
        find(addresses=["255.255.255.255"])
