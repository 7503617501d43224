"""Launched processes find each other; who does not come, or is elsewhere, is named. Ranks are threads here."""

import dataclasses
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from unisono.errors import ArgumentError, WaitTimeout
from unisono.membership import rendezvous
from unisono.membership.detect import Launch
from unisono.membership.rendezvous import Identity, connect, meet, strangers

HOME = Identity("node-a", "boot-1", "net:[1] pid:[1]", 1000, 1)


@pytest.fixture(autouse=True)
def _a_pid_for_each_thread(monkeypatch):
    """Ranks are threads here, and must be told apart like processes."""
    mine = Identity.mine
    with_pid = classmethod(lambda cls: dataclasses.replace(mine(), pid=threading.get_native_id()))
    monkeypatch.setattr(rendezvous.Identity, "mine", with_pid)


def launches(size):
    return [Launch(rank, size, "torchrun", "") for rank in range(size)]


def together(function, launches):
    """function(launch) on one thread per rank; results or exceptions."""

    def guarded(launch):
        try:
            return function(launch)
        except (ArgumentError, WaitTimeout) as error:
            return error

    with ThreadPoolExecutor(len(launches)) as pool:
        return list(pool.map(guarded, launches))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_all_share_one_arena(size):
    store = HashStore()
    arenas = together(lambda launch: meet(launch, store, 20), launches(size))
    for rank, arena in enumerate(arenas):
        arena.mark_gone(rank, f"tested {rank}")
    for arena in arenas:
        assert arena.size == size
        assert [arena.board(rank).gone for rank in range(size)] == [f"tested {rank}" for rank in range(size)]
        arena.close()


@pytest.mark.parametrize("absent", [0, 2])
def test_who_does_not_come_is_named_by_everybody_else(absent):
    store, start = HashStore(), time.monotonic()
    come = [launch for launch in launches(4) if launch.rank != absent]
    for launch, error in zip(come, together(lambda launch: meet(launch, store, 0.5), come), strict=True):
        assert isinstance(error, WaitTimeout)
        assert (error.missing, error.waiting) == ((absent,), launch.rank)
    assert time.monotonic() - start < 5


def test_a_second_attempt_does_not_meet_the_first():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    there = [Launch(rank, 3, "environment", "", "127.0.0.1", port) for rank in range(3)]
    first, second = (together(lambda launch: connect(launch, 60, attempt), there) for attempt in (1, 2))  # noqa: B023
    first_arenas = together(lambda launch: meet(launch, first[launch.rank], 60), there)
    second_arenas = together(lambda launch: meet(launch, second[launch.rank], 60), there)
    first_arenas[0].mark_gone(0, "only the first")
    assert all(arena.board(0).gone for arena in first_arenas)
    assert not any(arena.board(0).gone for arena in second_arenas)
    for arena in first_arenas + second_arenas:
        arena.close()


def test_nobody_at_the_meeting_place():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        with pytest.raises(WaitTimeout, match="MASTER_PORT") as caught:
            connect(Launch(1, 2, "environment", "", "127.0.0.1", probe.getsockname()[1]), 0.5, 1)
    assert caught.value.missing == (0,)


def test_a_port_in_use_is_said():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        launch = Launch(0, 2, "environment", "", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ArgumentError, match="rank 0 cannot listen"):
            connect(launch, 2.0, 1)


def test_ranks_on_another_host_are_named_to_everybody(monkeypatch):
    store, odd = HashStore(), threading.local()

    def mine(cls):
        home = dataclasses.replace(HOME, pid=threading.get_native_id())
        return dataclasses.replace(home, host="node-b", boot="boot-2") if odd.here else home

    def elsewhere(launch):
        odd.here = launch.rank == 1
        return meet(launch, store, 20)

    monkeypatch.setattr(rendezvous.Identity, "mine", classmethod(mine))
    for error in together(elsewhere, launches(3)):
        assert isinstance(error, ArgumentError)
        assert "rank 1 runs on host node-b, rank 0 on node-a" in str(error)


def test_a_rank_that_dies_before_it_has_the_arena_is_named(monkeypatch):
    store, attach = HashStore(), rendezvous.Arena.attach

    def die_once(fd):
        if threading.current_thread().name.startswith("victim"):
            raise EOFError
        return attach(fd)

    monkeypatch.setattr(rendezvous.Arena, "attach", die_once)

    def act(launch):
        if launch.rank == 1:
            threading.current_thread().name = "victim"
        return meet(launch, store, 1.0)

    host, _, survivor = together(act, launches(3))
    assert isinstance(host, WaitTimeout)
    assert host.missing == (1,)
    survivor.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"host": "other name"}, ""),
        ({"host": "node-b", "boot": "boot-2"}, "rank 2 runs on host node-b, rank 0 on node-a"),
        ({"namespaces": "net:[2] pid:[1]"}, "rank 2 .* runs in another container"),
        ({"user": 1001}, "rank 2 runs as user 1001"),
        ({"pid": 11}, r"ranks 1 and 2 are one process \(pid 11\)"),
    ],
)
def test_strangers(change, words):
    others = [dataclasses.replace(HOME, **{"pid": rank, **chosen}) for rank, chosen in ((11, {}), (12, change))]
    reason = strangers({0: HOME, 1: others[0], 2: others[1]})
    assert bool(reason) == bool(words)
    if words:
        with pytest.raises(ArgumentError, match=words):
            raise ArgumentError(reason)


def test_identity_is_the_same_for_everybody_here():
    mine = Identity.mine()
    assert strangers({0: mine, 1: dataclasses.replace(Identity.mine(), pid=mine.pid + 1)}) == ""
