"""Launched processes find each other; who does not come, ends or gives up is named. Ranks are threads here."""

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta

import pytest
from torch.distributed import HashStore, TCPStore

from tests.ranks.rendezvous.conftest import (
    Acting,
    begun,
    ended,
    expect_one_arena,
    has_come,
    meet,
    outcome,
    planned,
    together,
)
from tests.support.programs import Python, free_port, place
from tests.support.waiting import until
from unisono.base.errors import PeerFailed, PeerGone, WaitTimeout
from unisono.engine.process.alive import start_ticks
from unisono.ranks.rendezvous.entries import MeetingEnd, write
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.meeting import END, Meeting, MeetingResult

pytestmark = pytest.mark.usefixtures("threads_are_ranks")


@pytest.mark.parametrize(("absent", "up"), [(1, (0, 2, 3)), (2, (0, 1, 3)), (1, (0,)), (3, (2,))])
def test_absent_rank_is_named_by_all_others(absent: int, up: tuple[int, ...]) -> None:
    """Also where the time of only one of them is up."""
    store, ranks = HashStore(), [rank for rank in range(4) if rank != absent]
    parts = dict[int, Meeting]()

    def act(rank: int) -> MeetingResult:
        parts[rank] = Meeting(rank, 4, store, 60.0)
        return parts[rank].hold()

    with ThreadPoolExecutor(1) as pool:
        outcomes = pool.submit(together, act, ranks)
        until(lambda: all(has_come(store, rank) for rank in ranks))
        for rank in up:
            parts[rank]._deadline = 0.0
    for rank, error in zip(ranks, outcomes.result(), strict=True):
        assert isinstance(error, WaitTimeout)
        assert (error.missing, error.waiting) == ((absent,), rank)


def test_rank_that_fetches_no_memory_is_named() -> None:
    """It has come, and its process is there."""
    store = HashStore()
    planned(store).set("rank 1", write(Identity.mine()._replace(pid=1 << 30)))
    with pytest.raises(WaitTimeout) as caught:
        meet(0, 2, store, 0.3)
    assert caught.value.missing == (1,)


@pytest.mark.parametrize("end", [MeetingEnd(), MeetingEnd(missing=(0,)), None])
def test_end_of_a_process_after_the_meeting(end: MeetingEnd | None) -> None:
    """Rank 0 says how the meeting has ended, and its program ends, just after rank 1 has looked for its word."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        who = {"pid": process.pid, "ticks": start_ticks(process.pid), "size": 2}
        part = begun(store := HashStore(), Identity.mine()._replace(**who))

        def leave(what: str, key: str) -> None:
            if what == "check" and key.endswith("/end") and part.check(["rank 1"]):
                if end:
                    part.set(END, write(end))
                process.kill()
                process.wait()

        error = outcome(lambda rank: meet(rank, 2, Acting(store, after=leave), 0.3), 1)
    assert isinstance(error, PeerGone if end is None else WaitTimeout), error


CLOSED = r"rank 0 cannot be reached, as the store .* has closed the connection \(gone\)"


@pytest.mark.parametrize(("where", "words"), [({}, r"rank 0 \(pid \d+\) died"), ({"boot": "of another host"}, CLOSED)])
def test_lost_store_names_rank_0(where: dict[str, str], words: str) -> None:
    """Rank 2 has lost the store of rank 0's process, too, and has ended."""
    part = begun(store := HashStore(), ended(size=3, **where))
    part.set("rank 2", write(ended()))

    def lose(what: str, key: str) -> None:
        if what == "check" and key.endswith("/end") and part.check(["rank 1"]):
            raise RuntimeError("gone")

    with pytest.raises(PeerGone, match=words):
        meet(1, 3, Acting(store, lose))


def test_lost_store_ends_the_wait_of_rank_0() -> None:
    server = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    clients = [TCPStore("127.0.0.1", server.port, 2, is_master=False, wait_for_workers=False) for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:
        met = pool.submit(meet, 0, 2, clients[0], 20.0)
        until(lambda: has_come(clients[1], 0))
        del server
        with pytest.raises(PeerFailed, match=r"rank 0 gave up init\(\): the store .* has closed the connection"):
            met.result()


def start(python: Python, rank: int, port: int) -> "subprocess.Popen[str]":
    """One of three ranks that waits for others."""
    process = python("-c", "import unisono; unisono.init()", UNISONO_STALL_WARNING_S=0.2, **place(rank, 3, port))
    assert " has waited " in process.stderr.readline()
    return process


@pytest.mark.cold
def test_store_stays_for_who_reads_late(python: Python) -> None:
    """Ctrl-C ends rank 0, whose process runs the store, while rank 1 is stopped."""
    port = free_port()
    second, first = (start(python, rank, port) for rank in (1, 0))
    second.send_signal(signal.SIGSTOP)
    first.send_signal(signal.SIGINT)
    until(lambda: "KeyboardInterrupt" in first.stderr.readline())
    with suppress(subprocess.TimeoutExpired):
        first.wait(0.5)
    second.send_signal(signal.SIGCONT)
    said = second.communicate(timeout=60)[1].splitlines()[-1]
    assert " gave up init(): KeyboardInterrupt while rank 1 waited" in said


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
