"""Stores where ranks meet: rank 0's, and the socket of one launcher's job. Ranks are threads here.

A rank that does not reach the store, or finds another program there, is told why, and in time.
"""

import os
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from tests.ranks.rendezvous.test_meetings import SOON_S, attend, launch
from tests.support.waiting import until
from unisono.base.errors import ArgumentError, WaitTimeout
from unisono.base.fd_channel import PeerProcess, PlainChannel
from unisono.base.records import DepartureKind
from unisono.ranks.rendezvous import rendezvous, stores
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.rendezvous_messages import write_identity
from unisono.ranks.rendezvous.socket_store import SocketStore
from unisono.ranks.rendezvous.stores import MeetingPlace
from unisono.ranks.rendezvous.which_rank import Launch


def test_a_store_that_does_not_answer_ends_the_wait_in_time() -> None:
    ended = threading.Event()

    class Stopped(HashStore):  # type: ignore[misc]
        def check(self, _keys: list[str]) -> bool:
            ended.wait()
            return False

    began = time.monotonic()
    with pytest.raises(WaitTimeout, match=r"has not answered for .* is stopped, or its host is cut off") as caught:
        rendezvous.meet(1, 2, Stopped(), 1.0)
    assert caught.value.missing == (0,)
    assert time.monotonic() - began < SOON_S
    ended.set()


def test_a_name_that_does_not_resolve_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_NO_WAY_S", 0.2)
    began = time.monotonic()
    for rank in range(2):
        nowhere = Launch(rank, 2, "Slurm", "", "node7.invalid", 29500)
        with pytest.raises(ArgumentError, match=r"'node7.invalid' cannot be resolved .* MASTER_ADDR.* and MASTER_PORT"):
            MeetingPlace(nowhere, 3600.0).enter()
    assert time.monotonic() - began < SOON_S


def test_a_host_without_a_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_NO_WAY_S", 0.2)
    with pytest.raises(ArgumentError, match=r"255.255.255.255 cannot be reached .* MASTER_ADDR.* and MASTER_PORT"):
        MeetingPlace(Launch(1, 2, "Slurm", "", "255.255.255.255", 29500), 3600.0).enter()


def test_a_program_that_is_no_store_is_told_in_time(capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as other:
        error = attend(launch(other.getsockname()[1], 1, 2), 0.3)
    assert isinstance(error, WaitTimeout)
    assert "does not answer as rank 0's store: is it another program's?" in str(error)
    assert time.monotonic() - began < SOON_S
    until(lambda: not any(thread.name == "unisono asks a store" for thread in threading.enumerate()))
    assert not capfd.readouterr().err, "torch has printed its backtrace"


@pytest.fixture
def job(threads_are_ranks):
    """A job's name."""
    return f"test {secrets.token_hex(8)}"


def meet(job, rank, size, timeout_s=60.0):
    """The arena of this rank, or the exception."""
    return attend(Launch(rank, size, "Slurm", "", job=job), timeout_s)


def test_two_jobs_at_once(job):
    with ThreadPoolExecutor(4) as pool:
        first, second = (
            [pool.submit(meet, f"{job} {number}", rank, 2) for rank in (1, 0)] for number in (1, 2)
        )  # fmt: skip
        arenas = [[one.result() for one in futures] for futures in (first, second)]
    arenas[0][0].board(0).set_gone(DepartureKind.LEFT, "only the first")
    assert [str(arena.board(0).gone) for pair in arenas for arena in pair] == ["only the first"] * 2 + ["None"] * 2
    for arena in arenas[0] + arenas[1]:
        arena.close()


def test_without_rank_0_nobody_waits_longer_than_asked(job):
    error = meet(job, 1, 2, 0.3)
    assert isinstance(error, WaitTimeout)
    assert error.missing == (0,)
    assert job in str(error)


def test_two_processes_that_claim_one_rank_are_told(job):
    host = SocketStore(job, 0, 60)
    try:
        assert "is rank 0 of the job" in str(meet(job, 0, 2))
        first, second = SocketStore(job, 1, 60), SocketStore(job, 1, 60)
        for store in (first, second):
            other = Identity.mine().replace(pid=4711 if store is second else 4710)
            store.set("rank 1", write_identity(other))
            assert host.check(["rank 1"])
        until(lambda: second.check(["end"]))
        assert b"has come as rank 1 already" in second.get("end")
        assert b"process 4710 on host" in second.get("end")
        assert not first.check(["end"])
        host.close()
        with pytest.raises(RuntimeError, match="rank 0 has ended the meeting"):
            first.check(["hosts"])
        first.close()
        second.close()
    finally:
        host.close()


def test_a_rank_that_comes_when_a_meeting_ends_is_in_the_next_one(job):
    first, rank = SocketStore(job, 0, 60), SocketStore(job, 1, 60)
    rank.set_first("rank 1", write_identity(Identity.mine()))
    first.close()  # it has not said a word to this rank
    second = SocketStore(job, 0, 60)
    second.set("rank 0", write_identity(Identity.mine()))
    until(lambda: rank.check(["rank 0"]) or (second.check(["rank 1"]) and False))
    assert second.check(["rank 1"])
    rank.close()
    second.close()


def test_another_user_s_socket_is_not_spoken_to(job, monkeypatch):
    host = SocketStore(job, 0, 60)
    try:
        monkeypatch.setattr(PlainChannel, "peer", PeerProcess(1, os.getuid() + 1))
        with pytest.raises(ArgumentError, match="belongs to user"):
            SocketStore(job, 1, 60)
        assert not host.check(["rank 1"])  # nor is another user's connection
        assert not host._peers + host._newcomers.silent
    finally:
        host.close()


def test_ranks_on_several_hosts_need_another_place_to_meet(job, monkeypatch):
    """As where UNISONO_HOST_ID, or a container that shares the network only, tells them apart."""
    mine, here = Identity.mine, threading.local()
    own = classmethod(lambda _cls: mine().replace(host_id=f"{here.number}"))
    monkeypatch.setattr(Identity, "mine", own)

    def act(rank):
        here.number = rank
        return meet(job, rank, 2)

    with ThreadPoolExecutor(2) as pool:
        for error in pool.map(act, range(2)):
            assert isinstance(error, ArgumentError)
            assert "rank 1" in str(error)
            assert "set MASTER_ADDR, to an address of rank 0's host, and MASTER_PORT" in str(error)
