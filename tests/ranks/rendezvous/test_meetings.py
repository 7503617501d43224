"""Ranks find the meeting that rank 0 holds; other jobs, sizes and programs at one port are told. Threads are ranks."""

import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore

from tests.ranks.rendezvous.conftest import Came
from tests.ranks.rendezvous.conftest import meet as meet_at
from tests.support.waiting import until
from unisono.base.config import Config
from unisono.base.errors import ArgumentError, OutOfMemory, PeerError, WaitTimeout
from unisono.base.records import DepartureKind
from unisono.ranks.group.initialize import meet_in_rounds
from unisono.ranks.rendezvous import meeting
from unisono.ranks.rendezvous.asked_store import AskedStore
from unisono.ranks.rendezvous.entries import MeetingEnd, write
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.launchers import Launch
from unisono.ranks.rendezvous.meeting import BEAT, END, Meeting

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


def attend(launch: Launch, timeout_s: float) -> Any:
    """The arena of this rank, or the exception."""
    met = meet(launch, timeout_s)
    return met if isinstance(met, Exception) else met.arena


def meet(launch: Launch, timeout_s: float) -> Any:
    """What this rank has when all have met, or the exception."""
    try:
        return meet_in_rounds(launch, time.monotonic() + timeout_s)
    except (ArgumentError, PeerError, WaitTimeout, OutOfMemory) as error:
        return error


def together(launches: Sequence[Launch], timeout_s: float = 60.0) -> list[Any]:
    with ThreadPoolExecutor(len(launches)) as pool:
        return list(pool.map(lambda one: attend(one, timeout_s), launches))


def expect_one_arena(arenas: Sequence[Any]) -> None:
    words = secrets.token_hex(4)
    arenas[0].board(1).set_gone(DepartureKind.LEFT, words)
    assert [str(arena.board(1).gone) for arena in arenas] == [words] * len(arenas)
    for arena in arenas:
        arena.close()


@pytest.mark.parametrize("sizes", [(3, 2, 3), (2, 2, 3), (2, 3, 3), (3, 3, 2)])
def test_sizes_that_differ_are_one_error_of_all(port: int, sizes: Sequence[int]) -> None:
    odd = [rank for rank in range(3) if sizes[rank] != sizes[0]]
    others = [rank for rank in range(1, 3) if rank not in odd]  # they come last: without the odd they may be complete
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(attend, launch(port, 0, sizes[0]), 60.0)
        errors = together([launch(port, rank, sizes[rank]) for rank in odd])
        errors += [attend(launch(port, rank, sizes[rank]), 60.0) for rank in others] + [first.result()]
    assert all(isinstance(error, ArgumentError) for error in errors), errors
    assert len({str(error) for error in errors}) == 1
    assert any(f"rank 0 {sizes[0]}, rank {rank} {sizes[rank]}" in str(errors[0]) for rank in odd)
    assert "WORLD_SIZE" in str(errors[0])


def test_rank_of_another_job_is_refused(port: int) -> None:
    """And the job goes on."""
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(attend, launch(port, 0, 2, "job a"), 60.0)
        began = time.monotonic()
        error = attend(launch(port, 1, 2, "job b"), 60.0)
        assert time.monotonic() - began < SOON_S
        assert isinstance(error, ArgumentError)
        for words in (f"127.0.0.1:{port}", "rank 1 of job 'job b'", "job 'job a'", "set MASTER_PORT"):
            assert words in str(error)
        assert not first.done()
        expect_one_arena([attend(launch(port, 1, 2, "job a"), 60.0), first.result()])


Places = Callable[[int], Launch]


@pytest.fixture(params=["address", "job"])
def place(request: pytest.FixtureRequest, port: int) -> Places:
    """Three ranks that meet at an address, or at the socket of their job."""
    if request.param == "address":
        return lambda rank: launch(port, rank, 3)
    name = f"test {secrets.token_hex(8)}"
    return lambda rank: Launch(rank, 3, "", job=name)


def test_second_process_as_a_rank_is_refused(place: Places, came: Came) -> None:
    """And the job goes on."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(attend, place(0), 60.0), pool.submit(attend, place(1), 60.0)
        until(lambda: bool(came.of(1)))
        error = attend(place(1), 60.0)
        assert isinstance(error, ArgumentError)
        assert "another process is rank 1 already" in str(error)
        expect_one_arena([attend(place(2), 60.0), first.result(), second.result()])


def test_late_rank_meets_ranks_after_a_time_out(place: Places, came: Came, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: set[tuple[int, str]] = set()
    monkeypatch.setattr(meeting, "_known", heard)
    with ThreadPoolExecutor(2) as pool:
        early = [pool.submit(attend, place(rank), 60.0) for rank in (0, 1)]
        until(lambda: len(came) == 2 and all(len(part.identities) == 2 for part in came))
        came.time_is_up(0, 1)
        for one in early:
            error = one.result()
            assert isinstance(error, WaitTimeout)
            assert error.missing == (2,)
    with ThreadPoolExecutor(1) as pool:  # it comes for the first time, and before the others come again
        late = pool.submit(attend, place(2), 60.0)
        until(
            lambda: bool(place(2).job or 2 in dict(heard.copy()))
        )  # at an address, it hears of the meeting that has ended
        expect_one_arena([*together([place(1), place(0)]), late.result()])


def test_first_time_out_ends_the_meeting_for_all(place: Places, came: Came) -> None:
    """Rank 1 no longer waits, and rank 2 comes late. All meet in the next meeting, which rank 0 holds."""
    with ThreadPoolExecutor(1) as zero, ThreadPoolExecutor(1) as one:
        first, early = zero.submit(attend, place(0), 60.0), one.submit(attend, place(1), 60.0)
        came.time_is_up(1)
        for done in (early, first):
            error = done.result(SOON_S)
            assert isinstance(error, WaitTimeout)
            assert error.missing == (2,)
        again = one.submit(attend, place(1), 60.0)
        last = zero.submit(attend, place(0), 60.0)
        expect_one_arena([attend(place(2), 60.0), again.result(), last.result()])


def test_time_out_of_first_call_ends_no_second(place: Places, came: Came) -> None:
    """Rank 1 has come again into the meeting of rank 0's first call, whose time is then up. Rank 2 comes late."""
    with ThreadPoolExecutor(1) as zero, ThreadPoolExecutor(1) as one:
        assert isinstance(one.submit(attend, place(1), 0.1).result(), WaitTimeout)
        again, first = one.submit(attend, place(1), 60.0), zero.submit(attend, place(0), 60.0)
        until(lambda: bool(came.of(1)))
        came.time_is_up(0)
        error = first.result()
        assert isinstance(error, WaitTimeout)
        assert error.missing == (2,)
        last = zero.submit(attend, place(0), 60.0)
        expect_one_arena([attend(place(2), 60.0), again.result(), last.result()])


def test_next_meeting_ends_one_without_an_end(port: int, came: Came, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store does not answer rank 0 in time, which would say that its time is up. Rank 1 waits in that meeting."""
    set_first, silent = AskedStore.set_first, list[str]()

    def unheard(store: AskedStore, key: str, value: str) -> bytes:
        if key == END and not silent:
            silent.append(key)
            raise WaitTimeout("init()", 1.0, (), 0)
        return set_first(store, key, value)

    with ThreadPoolExecutor(1) as zero, ThreadPoolExecutor(1) as one:
        first = zero.submit(attend, launch(port, 0, 3), 60.0)
        waits = one.submit(attend, launch(port, 1, 3), 60.0)
        until(lambda: bool(came.of(0) and came.of(1)))
        monkeypatch.setattr(AskedStore, "set_first", unheard)
        came.time_is_up(0)
        assert isinstance(first.result(), WaitTimeout)
        assert silent
        again = zero.submit(attend, launch(port, 0, 3), 60.0)
        error = waits.result(SOON_S)
        assert isinstance(error, WaitTimeout)
        assert error.missing == (0,)
        last = one.submit(attend, launch(port, 1, 3), 60.0)
        expect_one_arena([attend(launch(port, 2, 3), 60.0), last.result(), again.result()])


def test_meeting_heard_of_late_is_not_held(port: int, came: Came, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store answers rank 0's first call only when it has heard of the second."""
    late: list[Callable[[], object]] = []
    answer = AskedStore._answer

    def slowly(store: AskedStore, question: Callable[[], Any]) -> Any:
        if question.__qualname__.startswith(("AskedStore.set.", "AskedStore.replace.")) and not late:
            late.append(question)
            raise TimeoutError
        return answer(store, question)

    monkeypatch.setattr(AskedStore, "_answer", slowly)
    assert isinstance(attend(launch(port, 0, 2), 60.0), WaitTimeout)
    with ThreadPoolExecutor(1) as zero:
        again = zero.submit(attend, launch(port, 0, 2), 60.0)
        until(lambda: bool(came.of(0)))
        late[0]()
        expect_one_arena([attend(launch(port, 1, 2), SOON_S), again.result()])


@pytest.mark.long
@pytest.mark.parametrize("at", ["address", "job"])
@pytest.mark.parametrize("seed", range(2))
def test_second_calls_after_random_time_outs(port: int, at: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of some jobs, a rank begins its first call at a random time, and waits for a random time; so it does in
    its second call, in every third job. All ranks of a job meet, or all are told.
    """
    choose, here = random.Random(seed), threading.local()
    monkeypatch.setattr(meeting, "_known", _OfThread())
    mine = Identity.mine
    monkeypatch.setattr(Identity, "mine", lambda *how: mine(*how)._replace(host_id=f"{here.host}"))

    def waits() -> float:
        return choose.choice([0.05, 0.3, 0.6]) * choose.uniform(1.0, 2.0)

    def plans_of(number: int) -> list[tuple[float, float, float]]:
        return [(choose.uniform(0.0, 0.9), waits(), waits() if number // 3 % 3 == 0 else LONG_S) for _ in range(3)]

    def job(number: int, plans: Sequence[tuple[float, float, float]]) -> list[Any]:
        name, hosts = f"test {secrets.token_hex(8)}", number % 3 if at == "address" else 0

        def one(rank: int) -> Any:
            begins, first_s, second_s = plans[rank]
            here.host = (0, rank % 2, rank)[hosts]
            own = launch(port, rank, 3) if at == "address" else Launch(rank, 3, "", job=name)
            own = own._replace(prefix=name)
            time.sleep(begins)
            met = meet(own, first_s)
            return meet(own, second_s) if isinstance(met, WaitTimeout) else met

        with ThreadPoolExecutor(3) as ranks:
            return list(ranks.map(one, range(3)))

    jobs = [plans_of(number) for number in range(24)]
    with ThreadPoolExecutor(6) as pool:
        for plans, outcomes in zip(jobs, pool.map(job, range(24), jobs), strict=True):
            told, long = [isinstance(outcome, WaitTimeout) for outcome in outcomes], plans[0][2] == LONG_S
            assert not any(told) if long else all(told) or not any(told), (plans, outcomes)
            met = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
            assert len({one.secret or os.fstat(one.arena.fd).st_ino for one in met}) == bool(met), (plans, outcomes)
            for one in met:
                one.arena.close()


class _OfThread(threading.local):
    """The meetings of which a rank has heard, where ranks are threads."""

    def __init__(self) -> None:
        self._heard: set[tuple[int, str]] = set()
        self.add, self.copy = self._heard.add, self._heard.copy

    def __contains__(self, meeting: tuple[int, str]) -> bool:
        return meeting in self._heard


def come(store: HashStore, rank: int, timeout_s: float = SOON_S, *, stale: bool = False) -> str:
    """The name of the meeting that this one of two ranks begins, or comes to."""
    part = Meeting(rank, 2, store, timeout_s, Config(), stale=stale)
    with closing(part._store):
        part._come()
    return part.name


@pytest.mark.parametrize("end", ["", "no memory"])
def test_notice_of_an_earlier_start_is_ignored(end: str) -> None:
    """Rank 0 of that start has ended in the meeting, or has given it up."""
    store = HashStore()
    earlier = come(store, 0)
    at = PrefixStore(earlier, store)
    at.set(BEAT, "1")
    if end:
        at.set(END, write(MeetingEnd(reason=end)))
    with pytest.raises(WaitTimeout, match="earlier start"):
        come(store, 1, 0.1, stale=True)
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(come, store, 1, stale=True)
        name = come(store, 0, stale=True)
        for beat in range(1000):
            store.set(f"{name}/{BEAT}", f"{beat}")
            if late.done():
                break
            time.sleep(0.01)
        assert late.result() == name != earlier


def test_rank_0_beats_while_it_waits() -> None:
    """A rank that comes late from another agent of torchrun finds the meeting."""
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        met = [pool.submit(meet_at, rank, 2, store, SOON_S, stale=True) for rank in (0, 1)]
        expect_one_arena([rank.result().arena for rank in met])


def test_error_of_a_store_is_raised_once() -> None:
    """The rank meets at another store before it comes to this one again."""
    store = HashStore()
    store.set(f"{come(store, 0)}/{END}", write(MeetingEnd(reason="no memory")))
    with pytest.raises(ArgumentError, match="no memory"):
        come(store, 1)
    other = HashStore()
    assert come(other, 0) == come(other, 1)
    with pytest.raises(WaitTimeout):
        come(store, 1, 0.0)
    assert come(store, 0) == come(store, 1)


@pytest.mark.parametrize("late", [False, True])
def test_time_is_up_when_a_rank_has_the_memory(
    place: Places, came: Came, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Rank 1 is in the group if rank 0 has ended the meeting by then. Otherwise there is none."""
    fetch, stop_waiting, set_first = meeting.fetch, Meeting._stop_waiting, AskedStore.set_first
    tried = threading.Event()

    def fetch_in_time(home: Identity, first: int, rank: int, deadline: float) -> Any:
        arena = fetch(home, first, rank, deadline)
        if rank == 1:
            came.time_is_up(1)
        return arena

    def stop(part: Meeting, key: str, teller: int) -> bytes:
        if key == END and late:
            tried.wait(SOON_S)
        return stop_waiting(part, key, teller)

    def end(store: AskedStore, key: str, value: str) -> bytes:
        if key == END and write(MeetingEnd()) == value and not late:
            tried.wait(SOON_S)
        said = set_first(store, key, value)
        if key == END:
            tried.set()
        return said

    monkeypatch.setattr(meeting, "fetch", fetch_in_time)
    monkeypatch.setattr(Meeting, "_stop_waiting", stop)
    monkeypatch.setattr(AskedStore, "set_first", end)
    outcomes = together([place(rank) for rank in range(3)])
    if late:
        expect_one_arena(outcomes)
        return
    for error in outcomes:
        assert isinstance(error, WaitTimeout), error
        assert error.missing == (0,)


def test_a_store_without_a_meeting_is_told(port: int) -> None:
    error = attend(launch(port, 1, 2), 0.5)
    assert isinstance(error, WaitTimeout)
    assert error.missing == (0,)
    assert "responds, but rank 0 has not called init()" in str(error)
    assert "waits in torch's store for a missing rank" in str(error)
