"""Launched processes find each other; who does not come, or is elsewhere, is named. Ranks are threads here."""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest
from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore

from tests.ranks.rendezvous.conftest import (
    Act,
    Acting,
    Came,
    begun,
    ended,
    expect_one_arena,
    meet,
    outcome,
    planned,
    together,
)
from tests.support.waiting import until
from unisono.base.errors import ArgumentError, PeerGone, WaitTimeout
from unisono.engine.process.alive import start_ticks
from unisono.ranks.group.initialize import meet_in_rounds
from unisono.ranks.rendezvous.asked_store import AskedStore
from unisono.ranks.rendezvous.entries import MeetingEnd, read, write
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.launchers import Launch
from unisono.ranks.rendezvous.meeting import END
from unisono.ranks.rendezvous.rendezvous_messages import end_of, store_silent, why_ended

pytestmark = pytest.mark.usefixtures("threads_are_ranks")


@pytest.mark.parametrize(("absent", "up"), [(1, (0, 2, 3)), (2, (0, 1, 3)), (1, (0,)), (3, (2,))])
def test_absent_rank_is_named_by_all_others(absent: int, up: tuple[int, ...], came: Came) -> None:
    """Also where the time of only one of them is up."""
    store, ranks = HashStore(), [rank for rank in range(4) if rank != absent]
    with ThreadPoolExecutor(1) as pool:
        outcomes = pool.submit(together, lambda rank: meet(rank, 4, store), ranks)
        until(lambda: len(came) == 3)
        came.time_is_up(*up)
    for rank, error in zip(ranks, outcomes.result(), strict=True):
        assert isinstance(error, WaitTimeout)
        assert (error.missing, error.waiting) == ((absent,), rank)


def test_a_port_in_use_is_said() -> None:
    """By a program that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        launch = Launch(0, 2, "", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ArgumentError, match=r"rank 0 cannot listen .*Give each job its own port"):
            meet_in_rounds(launch, time.monotonic() + 2.0)


def test_rank_that_fetches_no_memory_is_named() -> None:
    """It has come, and its process is there."""
    store = HashStore()
    planned(store).set("rank 1", write(Identity.mine()._replace(pid=1 << 30)))
    with pytest.raises(WaitTimeout) as caught:
        meet(0, 2, store, 0.3)
    assert caught.value.missing == (1,)


@pytest.mark.parametrize(("victim", "absent"), [(0, 2), (1, 2), (2, 1)])
def test_death_in_a_meeting_is_named_at_once(victim: int, absent: int) -> None:
    """A rank never comes; the victim's process seems to have ended as soon as it has said who it is."""
    store, (rank,) = HashStore(), {0, 1, 2} - {victim, absent}
    if victim == 0:
        begun(store, ended(size=3))
    else:
        planned(store).set(f"rank {victim}", write(ended()))
    with pytest.raises(PeerGone) as caught:
        meet(rank, 3, store)
    assert caught.value.rank == victim


def test_slow_store_says_who_has_died_first() -> None:
    """Rank 0 has heard that rank 2 has died, and its program has ended."""
    store = HashStore()
    begun(store, ended(size=3)).set(END, write(MeetingEnd(gone=(2, 7, 5))))
    with pytest.raises(PeerGone) as caught:
        meet(1, 3, Acting(store, lambda _what, _key: time.sleep(0.1)))
    assert caught.value.rank == 2


def at_the_end(part: PrefixStore, act: Callable[[], object]) -> Act:
    """What to do where rank 1, which has come, looks how the meeting has ended."""
    return lambda what, key: act() if what == "check" and key.endswith("/end") and part.check(["rank 1"]) else None


@pytest.mark.parametrize("beside", [False, True])
def test_lost_store_names_rank_0(beside: bool) -> None:
    """Rank 2 has lost the store of rank 0's process, too, and has ended."""
    store, where = HashStore(), {} if beside else {"boot": "of another host"}
    part = begun(store, ended(size=3, **where))
    part.set("rank 2", write(ended()))

    def lose() -> None:
        raise RuntimeError("gone")

    with pytest.raises(PeerGone) as caught:
        meet(1, 3, Acting(store, at_the_end(part, lose)))
    assert caught.value.rank == 0
    assert (" died " in str(caught.value)) == beside


@pytest.mark.parametrize("end", [MeetingEnd(), MeetingEnd(missing=(0,)), None])
def test_end_of_a_process_after_the_meeting(end: MeetingEnd | None, came: Came) -> None:
    """Rank 0 says how the meeting has ended, and its program ends, just after rank 1 has looked for its word."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        who = {"pid": process.pid, "ticks": start_ticks(process.pid), "size": 2}
        part = begun(store := HashStore(), Identity.mine()._replace(**who))

        def leave() -> None:
            if end:
                part.set(END, write(end))
            process.kill()
            process.wait()

        error = outcome(lambda rank: meet(rank, 2, Acting(store, after=at_the_end(part, leave)), 0.3), 1)
    assert isinstance(error, PeerGone if end is None else WaitTimeout), error


def test_process_of_rank_0_stays_for_late_ranks() -> None:
    """Its user has the error at once. Its process may run the store: without it, the others would name rank 0."""
    server = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    part = planned(server)
    part.set("rank 1", write(Identity.mine()._replace(common={"unisono": "0"})))
    part.add("told", 1)
    before = threading.enumerate()
    with pytest.raises(ArgumentError, match=r"rank 1 .* has unisono=0,"):
        meet(0, 3, server)
    (stays,) = (thread for thread in threading.enumerate() if thread not in before and "late" in thread.name)
    assert not stays.daemon
    assert stays.is_alive()
    part.add("told", 1)
    stays.join()


def test_silent_store_of_rank_0_ends_the_wait() -> None:
    silent = store_silent("127.0.0.1:1234", 0, 5.0, 5.0)
    said = read(MeetingEnd, write(end_of(silent, 0)).encode(), 0, 3)
    error = why_ended(said, 2, 5.0)
    assert isinstance(error, WaitTimeout)
    assert error.missing == (0,)


def test_torch_is_quiet_about_a_lost_store(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_waiting_rank_gets_a_value_when_set(kind: str, tmp_path: object) -> None:
    if kind in ("libuv", "threads"):
        how = {"use_libuv": kind == "libuv", "wait_for_workers": False}
        server = TCPStore("127.0.0.1", 0, 2, is_master=True, **how)
        client = TCPStore("127.0.0.1", server.port, 2, is_master=False, **how)
    elif kind == "file":
        server, client = (FileStore(f"{tmp_path}/store", 2) for _ in range(2))
    else:
        server = client = HashStore()
    with closing(AskedStore(client, 1, time.monotonic() + 60)) as asked, ThreadPoolExecutor(1) as pool:
        server.set("first", "word")  # it makes the file
        assert [asked.value("none", limit_s) for limit_s in (0.0, 0.01, -1.0)] == [None] * 3
        later = pool.submit(asked.value, "key", 50.0)
        server.set("other", "word")
        server.set("key", "word")
        assert later.result(20) == b"word"
        assert asked.value("other", 0.0) == b"word"


def test_ranks_of_one_process_are_refused_at_once() -> None:
    store, start, process = HashStore(), time.monotonic(), {"pid": os.getpid(), "ticks": start_ticks(os.getpid())}
    for error in together(lambda rank: meet(rank, 2, store), range(2), special=lambda _: process):
        assert isinstance(error, ArgumentError)
        assert f"ranks 0 and 1 are the same process (pid {os.getpid()})" in str(error)
    assert time.monotonic() - start < 50


def test_interrupted_rank_leaves_the_group() -> None:
    """Ctrl-C ends its `init()` when the meeting has ended well."""
    store = HashStore()

    def interrupt(what: str, key: str) -> None:
        if what == "get" and key.endswith("/end"):
            raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(meet, 0, 2, store)
        second = pool.submit(meet, 1, 2, Acting(store, interrupt))
        with pytest.raises(KeyboardInterrupt):
            second.result()
        with closing(first.result().arena) as arena:
            assert str(arena.board(1).gone) == "gave up init(): KeyboardInterrupt"


@pytest.mark.parametrize("timeout_s", [365 * 86_400.0, timedelta.max.total_seconds(), float("inf")])
def test_ranks_may_wait_for_years(timeout_s: float) -> None:
    store = HashStore()
    expect_one_arena(together(lambda rank: meet(rank, 2, store, timeout_s), range(2)))
