"""Launched processes find each other; who does not come, or is elsewhere, is named. Ranks are threads here."""

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from types import SimpleNamespace

import pytest
from torch.distributed import FileStore, HashStore, TCPStore

from tests.ranks.rendezvous.conftest import begun, planned
from tests.support.waiting import until
from unisono.base.config import Config
from unisono.base.errors import ArgumentError, PeerGone, WaitTimeout
from unisono.engine.memory.arena import Arena
from unisono.ranks.group.initialize import meet_in_rounds
from unisono.ranks.rendezvous import meeting, stores
from unisono.ranks.rendezvous.asked_store import AskedStore
from unisono.ranks.rendezvous.entries import MeetingEnd, read, write
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.launchers import Launch
from unisono.ranks.rendezvous.meeting import END, Meeting
from unisono.ranks.rendezvous.rendezvous_messages import end_of, store_silent, why_ended

pytestmark = pytest.mark.usefixtures("threads_are_ranks")


def meet(*arguments):
    """The arena of this rank's host."""
    return Meeting(*arguments).hold().arena


def together(function, ranks):
    """function(rank) on one thread per rank; results or exceptions."""

    def guarded(rank):
        try:
            return function(rank)
        except (ArgumentError, PeerGone, WaitTimeout) as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(guarded, ranks))


@pytest.mark.parametrize("absent", [1, 2])
def test_absent_rank_is_named_by_all_others(absent, came):
    store, ranks = HashStore(), [rank for rank in range(4) if rank != absent]
    with ThreadPoolExecutor(1) as pool:
        outcomes = pool.submit(together, lambda rank: meet(rank, 4, store, 60.0), ranks)
        came.time_is_up(*ranks)
    for rank, error in zip(ranks, outcomes.result(), strict=True):
        assert isinstance(error, WaitTimeout)
        assert (error.missing, error.waiting) == ((absent,), rank)


def test_a_port_in_use_is_said(monkeypatch):
    monkeypatch.setattr(stores, "_ANSWER_S", 0.1)  # who listens there is no store that answers
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        launch = Launch(0, 2, "", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ArgumentError, match=r"rank 0 cannot listen .*Give each job its own port"):
            meet_in_rounds(launch, time.monotonic() + 2.0)


def test_death_before_the_arena_is_named(monkeypatch):
    """Time is up a little after both have come. The thread that stands for the dead rank waits to hear why."""
    store, hand_out = HashStore(), meeting.hand_out

    def die(_fd):
        raise EOFError

    def hand_out_soon(fd, listener, ranks, _deadline, look):
        return hand_out(fd, listener, ranks, time.monotonic() + 0.2, look)

    monkeypatch.setattr(Arena, "attach", die)
    monkeypatch.setattr(meeting, "hand_out", hand_out_soon)
    monkeypatch.setattr(meeting, "_REASON_S", 60.0)
    for error in together(lambda rank: meet(rank, 2, store, 60.0), range(2)):
        assert isinstance(error, WaitTimeout)
        assert error.missing == (1,)


@pytest.mark.parametrize(("victim", "absent"), [(0, 2), (1, 2), (2, 1)])
def test_death_in_a_meeting_is_named_at_once(victim, absent, monkeypatch):
    """A rank never comes; the victim's process seems to have ended as soon as it has said who it is."""
    store, (rank,) = HashStore(), {0, 1, 2} - {victim, absent}
    ended = Identity.mine()._replace(pid=1 << 30, ticks=1)
    if victim == 0:
        begun(store, ended._replace(size=3))
    else:
        planned(store, monkeypatch).set(f"rank {victim}", write(ended))
    with pytest.raises(PeerGone) as caught:
        meet(rank, 3, store, 60)
    assert caught.value.rank == victim


def test_slow_store_says_who_has_died_first(monkeypatch):
    """Rank 0 has heard that rank 2 has died, and its program has ended."""
    store, now = HashStore(), AskedStore.now
    monkeypatch.setattr(AskedStore, "now", lambda asked, key: (time.sleep(0.2), now(asked, key))[1])
    part = begun(store, Identity.mine()._replace(pid=1 << 30, ticks=1, size=3))
    part.set(END, write(MeetingEnd(gone=(2, 7, 5))))
    with pytest.raises(PeerGone) as caught:
        meet(1, 3, store, 60)
    assert caught.value.rank == 2


@pytest.mark.parametrize("beside", [False, True])
def test_lost_store_names_rank_0(beside):
    """Rank 2 has lost the store of rank 0's process, too, and has ended."""

    class Gone(HashStore):
        def check(self, _keys):
            raise RuntimeError("gone")

    part = Meeting(1, 3, Gone(), 60.0, Config())
    ended = part.identities[1]._replace(ticks=1, pid=1 << 30)
    part.identities |= {2: ended, 0: ended if beside else ended._replace(boot="of another host")}
    with closing(part), pytest.raises(PeerGone) as caught:
        part._look()
    assert caught.value.rank == 0
    assert (" died " in str(caught.value)) == beside


def test_process_of_rank_0_stays_for_late_ranks(monkeypatch):
    """Its user has the error at once. Its process may run the store: without it, the others would name rank 0."""
    server = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    other = Identity.mine()._replace(common={"unisono": "0"})
    part = planned(server, monkeypatch)
    part.set("rank 1", write(other))
    part.add("told", 1)
    before = threading.enumerate()
    with pytest.raises(ArgumentError, match=r"rank 1 .* has unisono=0,"):
        meet(0, 3, server, 60)
    (stays,) = (thread for thread in threading.enumerate() if thread not in before and "late" in thread.name)
    assert not stays.daemon
    assert stays.is_alive()
    part.add("told", 1)
    stays.join()


def test_silent_store_of_rank_0_ends_the_wait():
    silent = store_silent("127.0.0.1:1234", 0, 5.0, 5.0)
    said = read(MeetingEnd, write(end_of(silent, 0)).encode(), 0, 3)
    error = why_ended(said, 2, 5.0)
    assert isinstance(error, WaitTimeout)
    assert error.missing == (0,)


def test_torch_is_quiet_about_a_lost_store(capfd, monkeypatch):
    """Its backtraces would hide which rank has died."""
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    server = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, 2, is_master=False, wait_for_workers=False)
    with closing(AskedStore(client, 1, time.monotonic() + 60)) as asked:
        assert not asked.check(["key"])
        del server
        for _ in range(2):
            with pytest.raises(PeerGone):
                asked.check(["key"])
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["libuv", "threads", "hash", "file"])
def test_waiting_rank_gets_a_value_when_set(kind, tmp_path):
    if kind in ("libuv", "threads"):
        how = {"use_libuv": kind == "libuv", "wait_for_workers": False}
        server = TCPStore("127.0.0.1", 0, 2, is_master=True, **how)
        client = TCPStore("127.0.0.1", server.port, 2, is_master=False, **how)
    elif kind == "file":
        server, client = (FileStore(str(tmp_path / "store"), 2) for _ in range(2))
    else:
        server = client = HashStore()
    with closing(AskedStore(client, 1, time.monotonic() + 60)) as asked, ThreadPoolExecutor(1) as pool:
        server.set("first", "word")  # it makes the file
        assert [asked.value("none", 0.0), asked.value("none", 0.01), asked.value("none", -1.0)] == [None] * 3
        later = pool.submit(asked.value, "key", 50.0)
        server.set("other", "word")
        server.set("key", "word")
        assert later.result(20) == b"word"
        assert asked.value("other", 0.0) == b"word"


def test_ranks_of_one_process_are_refused_at_once(monkeypatch):
    monkeypatch.undo()
    store, start = HashStore(), time.monotonic()
    for error in together(lambda rank: meet(rank, 2, store, 100), range(2)):
        assert isinstance(error, ArgumentError)
        assert f"ranks 0 and 1 are the same process (pid {os.getpid()})" in str(error)
    assert time.monotonic() - start < 50


def test_first_to_give_up_tells_who_was_missing(came):
    store = HashStore()
    with ThreadPoolExecutor(1) as pool:
        outcomes = pool.submit(together, lambda rank: meet(rank, 3, store, 60.0), (0, 2))
        until(lambda: len(came) == 2)
        came.time_is_up(0)
    for error in outcomes.result():
        assert isinstance(error, WaitTimeout)
        assert error.missing == (1,)


def test_interrupted_rank_leaves_the_group(monkeypatch):
    """Ctrl-C ends its `init()` when the meeting has ended well."""
    store, heed = HashStore(), Meeting._heed

    def interrupt(part, said):
        heed(part, said)
        if part._rank == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Meeting, "_heed", interrupt)
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(meet, rank, 2, store, 60.0) for rank in range(2))
        with pytest.raises(KeyboardInterrupt):
            second.result()
        with closing(first.result()) as arena:
            assert str(arena.board(1).gone) == "gave up init(): KeyboardInterrupt"


@pytest.mark.parametrize("timeout_s", [365 * 86_400.0, timedelta.max.total_seconds(), float("inf")])
def test_ranks_may_wait_for_years(timeout_s):
    store = HashStore()
    for arena in together(lambda rank: meet(rank, 2, store, timeout_s), range(2)):
        assert isinstance(arena, Arena)
        arena.close()


@pytest.mark.parametrize("end", [MeetingEnd(), MeetingEnd(missing=(0,)), None])
def test_end_of_a_process_after_the_meeting(end):
    """Rank 0 says how the meeting has ended, and its program ends, between two looks of rank 1."""
    said, mine = None if end is None else write(end).encode(), Identity.mine()
    member = object.__new__(Meeting)
    member._rank, member._size, member._start, member._home = 1, 2, time.monotonic(), mine
    member.identities = member._watched = {0: mine._replace(ticks=mine.ticks + 1), 1: mine}
    member._store = SimpleNamespace(now={END: said}.get)
    if end == MeetingEnd():
        member._look()
        return
    with pytest.raises(PeerGone if end is None else WaitTimeout):
        member._look()
