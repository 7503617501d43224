"""Ranks of one launcher's job meet at a socket named after the job. Ranks are threads here."""

import os
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.waiting import until
from unisono.base.errors import ArgumentError, WaitTimeout
from unisono.base.fd_channel import PeerProcess, PlainChannel
from unisono.base.records import DepartureKind
from unisono.ranks.rendezvous import rendezvous
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.rendezvous_messages import write_identity
from unisono.ranks.rendezvous.socket_store import SocketStore


@pytest.fixture
def job(monkeypatch):
    """A job's name; threads pass for processes."""
    mine = Identity.mine
    own = classmethod(lambda cls: mine()._replace(pid=threading.get_ident(), ticks=0))
    monkeypatch.setattr(Identity, "mine", own)
    monkeypatch.setattr(Identity, "is_at", lambda _self, _channel: True)  # the kernel knows no threads
    return f"test {secrets.token_hex(8)}"


def meet(job, rank, size, timeout_s=60.0):
    """The arena of this rank, or the exception."""
    try:
        store = SocketStore(job, rank, timeout_s)
        try:
            return rendezvous.meet(rank, size, store, timeout_s).arena
        finally:
            store.close()
    except (ArgumentError, WaitTimeout) as error:
        return error


def together(job, size, ranks, timeout_s=60.0):
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: meet(job, rank, size, timeout_s), ranks))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_all_share_one_arena(job, size):
    arenas = together(job, size, range(size))
    arenas[0].board(size - 1).set_gone(DepartureKind.LEFT, "tested")
    for arena in arenas:
        assert str(arena.board(size - 1).gone) == "tested"
        arena.close()


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


def test_who_does_not_come_is_named_by_everybody_else(job):
    for rank, error in zip((0, 2, 3), together(job, 4, (0, 2, 3), 3.0), strict=True):
        assert isinstance(error, WaitTimeout)
        assert (error.missing, error.waiting) == ((1,), rank)


def test_without_rank_0_nobody_waits_longer_than_asked(job):
    (error,) = together(job, 2, [1], 0.3)
    assert isinstance(error, WaitTimeout)
    assert error.missing == (0,)
    assert job in str(error)


def test_two_processes_that_claim_one_rank_are_told(job):
    host = SocketStore(job, 0, 60)
    try:
        assert "is rank 0 of the job" in str(meet(job, 0, 2))
        first, second = SocketStore(job, 1, 60), SocketStore(job, 1, 60)
        for store in (first, second):
            other = Identity.mine()._replace(pid=4711 if store is second else 4710)
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
        assert not host._peers + host._silent
    finally:
        host.close()


def test_ranks_on_several_hosts_need_another_place_to_meet(job, monkeypatch):
    """As where UNISONO_HOST_ID, or a container that shares the network only, tells them apart."""
    mine, here = Identity.mine, threading.local()
    own = classmethod(lambda _cls: mine()._replace(host_id=f"{here.number}"))
    monkeypatch.setattr(Identity, "mine", own)

    def act(rank):
        here.number = rank
        return meet(job, rank, 2)

    with ThreadPoolExecutor(2) as pool:
        for error in pool.map(act, range(2)):
            assert isinstance(error, ArgumentError)
            assert "rank 1" in str(error)
            assert "set MASTER_ADDR, to an address of rank 0's host, and MASTER_PORT" in str(error)
