"""Ranks find the meeting that rank 0 holds; other jobs, sizes and programs at one port are told. Threads are ranks."""

import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from torch.distributed import HashStore, TCPStore

from tests.ranks.rendezvous.conftest import Acting, Came, begun, expect_one_arena, meet, outcome, together
from tests.support.waiting import until
from unisono.base.errors import ArgumentError, WaitTimeout
from unisono.ranks.group.initialize import meet_in_rounds
from unisono.ranks.rendezvous import meeting
from unisono.ranks.rendezvous.entries import MeetingEnd, write
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.launchers import Launch
from unisono.ranks.rendezvous.meeting import BEAT, END, NOTICE

pytestmark = pytest.mark.usefixtures("threads_are_ranks")

SOON_S, LONG_S = 30.0, 60.0


@pytest.fixture
def port() -> Iterator[int]:
    """Of a store's server that stays, as that of rank 0's process does."""
    store = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False, multi_tenant=True)
    yield store.port
    del store


def launch(port: int, rank: int, size: int, name: str = "") -> Launch:
    return Launch(rank, size, "", "127.0.0.1", port, name=name)


def attend(launch: Launch, timeout_s: float = 60.0, **how: Any) -> Any:
    """What this rank has when all have met, or the exception."""
    return outcome(lambda _: meet_in_rounds(launch, time.monotonic() + timeout_s), launch.rank, **how)


def expect_missing(error: Any, *ranks: int) -> None:
    assert isinstance(error, WaitTimeout), error
    assert error.missing == ranks


@pytest.mark.parametrize("sizes", [(3, 2, 3), (2, 2, 3), (2, 3, 3), (3, 3, 2)])
def test_sizes_that_differ_are_one_error_of_all(sizes: Sequence[int]) -> None:
    store, odd = HashStore(), [rank for rank in range(3) if sizes[rank] != sizes[0]]
    others = [rank for rank in range(1, 3) if rank not in odd]  # they come last: without the odd they may be complete

    def act(rank: int) -> Any:
        return outcome(lambda rank: meet(rank, sizes[rank], store), rank)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(act, 0)
        errors = [*together(act, odd), *map(act, others), first.result()]
    assert all(isinstance(error, ArgumentError) for error in errors), errors
    (said,) = {str(error) for error in errors}
    assert any(f"rank 0 {sizes[0]}, rank {rank} {sizes[rank]}" in said for rank in odd)
    assert "WORLD_SIZE" in said


def test_rank_of_another_job_is_refused(port: int) -> None:
    """And the job goes on."""
    with ThreadPoolExecutor(1) as pool:
        first, began = pool.submit(attend, launch(port, 0, 2, "job a")), time.monotonic()
        error = attend(launch(port, 1, 2, "job b"))
        assert time.monotonic() - began < SOON_S
        assert isinstance(error, ArgumentError)
        for words in (f"127.0.0.1:{port}", "rank 1 of job 'job b'", "job 'job a'", "set MASTER_PORT"):
            assert words in str(error)
        assert not first.done()
        expect_one_arena([attend(launch(port, 1, 2, "job a")), first.result()])


Places = Callable[[int], Launch]


@pytest.fixture(params=["address", "job"])
def place(request: pytest.FixtureRequest, port: int) -> Places:
    """Three ranks that meet at an address, or at the socket of their job."""
    if request.param == "address":
        return lambda rank: launch(port, rank, 3)
    name = f"test {secrets.token_hex(8)}"
    return lambda rank: Launch(rank, 3, "", job=name)


@pytest.fixture
def comes(place: Places) -> Iterator[Callable[..., Any]]:
    """comes(rank): this rank calls `init`, on a thread of its own for each rank; its outcome comes later."""
    with ThreadPoolExecutor(1) as zero, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        yield lambda rank, timeout_s=60.0: (zero, one, two)[rank].submit(attend, place(rank), timeout_s)


def test_second_process_as_a_rank_is_refused(place: Places, came: Came, comes: Callable[..., Any]) -> None:
    """And the job goes on."""
    first, second = comes(0), comes(1)
    until(lambda: bool(came.of(1)))
    error = attend(place(1))
    assert isinstance(error, ArgumentError)
    assert "another process is rank 1 already" in str(error)
    expect_one_arena([comes(2).result(), first.result(), second.result()])


def test_late_rank_meets_ranks_after_a_time_out(place: Places, came: Came, comes: Callable[..., Any]) -> None:
    """It comes for the first time, and before the others come again."""
    early = [comes(rank) for rank in (0, 1)]
    until(lambda: len(came) == 2 and all(len(part.identities) == 2 for part in came))
    came.time_is_up(0, 1)
    for one in early:
        expect_missing(one.result(), 2)
    late = comes(2)
    if not place(2).job:  # at an address, it hears of the meeting that has ended
        until(lambda: (2, came[0].name) in meeting._known)
    again = comes(1), comes(0)
    expect_one_arena([one.result() for one in (*again, late)])


def test_first_time_out_ends_the_meeting_for_all(came: Came, comes: Callable[..., Any]) -> None:
    """Rank 1 no longer waits, and rank 2 comes late. All meet in the next meeting, which rank 0 holds."""
    first, early = comes(0), comes(1)
    came.time_is_up(1)
    for done in (early, first):
        expect_missing(done.result(SOON_S), 2)
    again, last = comes(1), comes(0)
    expect_one_arena([comes(2).result(), again.result(), last.result()])


def test_time_out_of_first_call_ends_no_second(came: Came, comes: Callable[..., Any]) -> None:
    """Rank 1 has come again into the meeting of rank 0's first call, whose time is then up. Rank 2 comes late."""
    expect_missing(comes(1, 0.1).result(), 0)
    again, first = comes(1), comes(0)
    until(lambda: bool(came.of(1)))
    came.time_is_up(0)
    expect_missing(first.result(), 2)
    last = comes(0)
    expect_one_arena([comes(2).result(), again.result(), last.result()])


def test_next_meeting_ends_one_without_an_end(came: Came) -> None:
    """The store does not answer rank 0 in time, which would say that its time is up. Rank 1 waits in that meeting."""
    store = HashStore()

    def silent(what: str, key: str) -> None:
        if what == "compare_set" and key.endswith(f"/{END}"):
            raise TimeoutError

    def comes(rank: int, at: Any = store) -> Any:
        return outcome(lambda rank: meet(rank, 3, at), rank)

    with ThreadPoolExecutor(3) as pool:
        first, waits = pool.submit(comes, 0, Acting(store, silent)), pool.submit(comes, 1)
        until(lambda: bool(came.of(0) and came.of(1)))
        came.time_is_up(0)
        assert isinstance(first.result(), WaitTimeout)
        again = pool.submit(comes, 0)
        expect_missing(waits.result(SOON_S), 0)
        expect_one_arena([*pool.map(comes, (1, 2)), again.result()])


def test_meeting_heard_of_late_is_not_held(came: Came) -> None:
    """The store answers rank 0's first call only when it has heard of the second."""
    store = HashStore()

    def silent(_what: str, key: str) -> None:
        if key == NOTICE:
            raise TimeoutError

    early = Acting(store, silent)
    with pytest.raises(WaitTimeout):
        meet(0, 2, early)
    with ThreadPoolExecutor(1) as zero:
        again = zero.submit(meet, 0, 2, store)
        until(lambda: bool(came.of(0)))
        method, *words = early.asked
        getattr(store, method)(*words)
        expect_one_arena([meet(1, 2, store, SOON_S), again.result()])


@pytest.mark.long
@pytest.mark.parametrize("at", ["address", "job"])
@pytest.mark.parametrize("seed", range(2))
def test_second_calls_after_random_time_outs(port: int, at: str, seed: int) -> None:
    """In each of some jobs, a rank begins its first call at a random time, and waits for a random time; so it does in
    its second call, in every third job. All ranks of a job meet, or all are told.
    """
    choose = random.Random(seed)

    def waits() -> float:
        return choose.choice([0.05, 0.3, 0.6]) * choose.uniform(1.0, 2.0)

    def plans_of(number: int) -> list[tuple[float, float, float]]:
        return [(choose.uniform(0.0, 0.9), waits(), waits() if number // 3 % 3 == 0 else LONG_S) for _ in range(3)]

    def job(number: int, plans: Sequence[tuple[float, float, float]]) -> list[Any]:
        name, hosts = f"test {secrets.token_hex(8)}", number % 3 if at == "address" else 0

        def one(rank: int) -> Any:
            begins, *limits_s = plans[rank]
            own = launch(port, rank, 3) if at == "address" else Launch(rank, 3, "", job=name)
            host = {"host_id": f"{(0, rank % 2, rank)[hosts]}"}
            time.sleep(begins)
            for limit_s in limits_s:
                met = attend(own._replace(prefix=name), limit_s, special=lambda _: host)
                if not isinstance(met, WaitTimeout):
                    break
            return met

        return together(one, range(3))

    jobs = [plans_of(number) for number in range(24)]
    with ThreadPoolExecutor(6) as pool:
        for plans, outcomes in zip(jobs, pool.map(job, range(24), jobs), strict=True):
            told, long = [isinstance(outcome, WaitTimeout) for outcome in outcomes], plans[0][2] == LONG_S
            assert not any(told) if long else all(told) or not any(told), (plans, outcomes)
            met = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
            assert len({one.secret or os.fstat(one.arena.fd).st_ino for one in met}) == bool(met), (plans, outcomes)
            for one in met:
                one.arena.close()


@pytest.mark.parametrize("end", ["", "no memory"])
def test_notice_of_an_earlier_start_is_ignored(end: str) -> None:
    """Rank 0 of that start has ended in the meeting, or has given it up. Rank 0 of this one beats while it waits."""
    earlier = begun(store := HashStore(), Identity.mine()._replace(size=2))
    earlier.set(BEAT, "1")
    if end:
        earlier.set(END, write(MeetingEnd(reason=end)))
    with pytest.raises(WaitTimeout, match="earlier start"):
        meet(1, 2, store, 0.1, stale=True)
    expect_one_arena(together(lambda rank: meet(rank, 2, store, SOON_S, stale=True), range(2)))


def test_error_of_a_store_is_raised_once() -> None:
    """The rank meets at another store before it comes to this one again."""
    begun(store := HashStore(), Identity.mine()._replace(size=2)).set(END, write(MeetingEnd(reason="no memory")))
    with pytest.raises(ArgumentError, match="no memory"):
        meet(1, 2, store)
    other = HashStore()
    expect_one_arena(together(lambda rank: meet(rank, 2, other), range(2)))
    with pytest.raises(WaitTimeout):
        meet(1, 2, store, 0.0)
    expect_one_arena(together(lambda rank: meet(rank, 2, store), range(2)))


@pytest.mark.parametrize("late", [False, True])
def test_time_is_up_when_a_rank_has_the_memory(came: Came, late: bool) -> None:
    """Rank 1 is in the group if rank 0 has ended the meeting by then. Otherwise there is none."""
    store, told, looked = HashStore(), list[str](), threading.Event()

    def before(rank: int, what: str, key: str) -> None:
        """Rank 0 ends the meeting when the time of rank 1 is up, which ends it, too. Which of them is first?"""
        if what == "compare_set" and key.endswith(f"/{END}"):
            looked.wait(SOON_S)
            if rank == late:
                until(lambda: store.check([key]))

    def after(rank: int, what: str, key: str) -> None:
        """The time of rank 1 is up when it has heard of its host, fetched the memory, and looked for the end."""
        if rank == 1 and what == "get" and key.endswith("/hosts"):
            told.append(key)
        elif rank == 1 and told and key.endswith(f"/{END}"):
            came.time_is_up(1)
            looked.set()

    outcomes = together(
        lambda rank: meet(rank, 3, Acting(store, partial(before, rank), partial(after, rank))), range(3)
    )
    if late:
        expect_one_arena(outcomes)
    else:
        for error in outcomes:
            expect_missing(error, 0)


def test_a_store_without_a_meeting_is_told(port: int) -> None:
    error = attend(launch(port, 1, 2), 0.5)
    expect_missing(error, 0)
    assert "responds, but rank 0 has not called init()" in str(error)
    assert "waits in torch's store for a missing rank" in str(error)
