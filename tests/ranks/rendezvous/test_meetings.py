"""Ranks find the meeting that rank 0 holds; other jobs, sizes and programs at one port are told. Threads are ranks."""

import os
import random
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore

from tests.conftest import NIGHTLY
from tests.ranks.rendezvous.conftest import Acting, begun, expect_one_arena, has_come, meet, outcome, together
from tests.support.waiting import until
from unisono.base.errors import ArgumentError, WaitTimeout
from unisono.ranks.group.initialize import meet_in_rounds
from unisono.ranks.rendezvous.entries import MeetingEnd, write
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.launchers import Launch
from unisono.ranks.rendezvous.meeting import BEAT, END, NOTICE, Meeting

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


def attend(launch: Launch, timeout_s: float = LONG_S, **how: Any) -> Any:
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


def test_strangers_at_a_meeting_are_refused(port: int) -> None:
    """A rank of another job, and a second process as the same rank. The job goes on."""
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(attend, launch(port, rank, 3, "job a")) for rank in range(2))
        error = attend(launch(port, 1, 3, "job b"))
        assert isinstance(error, ArgumentError)
        for words in (f"127.0.0.1:{port}", "rank 1 of job 'job b'", "job 'job a'", "set MASTER_PORT"):
            assert words in str(error)
        server = TCPStore("127.0.0.1", port, is_master=False)
        until(lambda: has_come(PrefixStore("unisono", server), 1))
        assert "another process is rank 1 already" in str(attend(launch(port, 1, 3, "job a")))
        expect_one_arena([attend(launch(port, 2, 3, "job a")), first.result(), second.result()])


class Plan(NamedTuple):
    """begins_s: when a rank makes its first call. limits_s: how long it waits in each call; it makes no further one."""

    begins_s: float
    limits_s: tuple[float, ...] = (LONG_S,)


PLANS: dict[str, tuple[Plan, Plan, Plan]] = {
    "late rank meets ranks after a time-out": (Plan(0, (0.3, LONG_S)), Plan(0, (0.3, LONG_S)), Plan(0.6)),
    "first time-out ends the meeting for all": (Plan(0, (LONG_S, LONG_S)), Plan(0, (0.3, LONG_S)), Plan(0.5)),
    "time-out of a first call ends no second one": (Plan(0.2, (0.3, LONG_S)), Plan(0, (0.1, LONG_S)), Plan(0.6)),
}
WAYS = [("address", "000"), ("address", "010"), ("job", "000"), ("job", "012")]
"""Where three ranks meet: at an address, or at the socket of their job; and the host of each."""


def draw(choose: random.Random) -> tuple[Plan, ...]:
    """Each rank has two short limits, or the second one is long for all."""
    last_s = choose.choice([0.0, LONG_S, LONG_S])

    def limit_s() -> float:
        return choose.choice([0.05, 0.3, 0.6]) * choose.uniform(1.0, 2.0)

    return tuple(Plan(choose.uniform(0.0, 0.9), (limit_s(), last_s or limit_s())) for _ in range(3))


DRAWN = {f"drawn {seed}": draw(random.Random(seed)) for seed in range(24 if NIGHTLY else 3)}


@pytest.mark.sampled
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("plans", [*PLANS.values(), *DRAWN.values()], ids=[*PLANS, *DRAWN])
def test_second_calls_meet_after_time_outs(port: int, way: tuple[str, str], plans: Sequence[Plan]) -> None:
    """Or all are told, where the last limits are short, too."""
    (at, hosts), name = way, f"test {secrets.token_hex(8)}"

    def act(rank: int) -> Any:
        own = launch(port, rank, 3) if at == "address" else Launch(rank, 3, "", job=name)
        time.sleep(plans[rank].begins_s)
        for limit_s in plans[rank].limits_s:
            met = attend(own, limit_s, special=lambda rank: {"host_id": hosts[rank]})
            if not isinstance(met, WaitTimeout):
                break
        return met

    outcomes, long = together(act, range(3)), plans[0].limits_s[-1] == LONG_S
    told = [isinstance(outcome, WaitTimeout) for outcome in outcomes]
    assert not any(told) if long else all(told) or not any(told), outcomes
    met = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    assert len({one.secret or os.fstat(one.arena.fd).st_ino for one in met}) == bool(met), outcomes
    for one in met:
        one.arena.close()


def test_next_meeting_ends_one_without_an_end() -> None:
    """The store does not answer rank 0 in time, which would say that its time is up. Rank 1 waits in that meeting."""
    store = HashStore()

    def silent(what: str, key: str) -> None:
        if what == "compare_set" and key.endswith(f"/{END}"):
            raise TimeoutError

    def comes(rank: int, at: Any = store, limit_s: float = LONG_S) -> Any:
        return outcome(lambda rank: meet(rank, 3, at, limit_s), rank)

    with ThreadPoolExecutor(3) as pool:
        waits, first = pool.submit(comes, 1), pool.submit(comes, 0, Acting(store, silent), 0.5)
        assert isinstance(first.result(), WaitTimeout)
        until(lambda: has_come(store, 1))
        again = pool.submit(comes, 0)
        expect_missing(waits.result(SOON_S), 0)
        expect_one_arena([*pool.map(comes, (1, 2)), again.result()])


def test_meeting_heard_of_late_is_not_held() -> None:
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
        until(lambda: has_come(store, 0))
        method, *words = early.asked
        getattr(store, method)(*words)
        expect_one_arena([meet(1, 2, store, SOON_S), again.result()])


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
def test_time_is_up_when_a_rank_has_the_memory(late: bool) -> None:
    """Rank 1 is in the group if rank 0 has ended the meeting by then. Otherwise there is none."""
    store, told, looked, parts = HashStore(), list[str](), threading.Event(), dict[int, Meeting]()

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
            parts[1]._deadline = 0.0
            looked.set()

    def act(rank: int) -> Any:
        at = Acting(store, partial(before, rank), partial(after, rank))
        parts[rank] = Meeting(rank, 3, at, LONG_S)
        return parts[rank].hold()

    outcomes = together(act, range(3))
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
