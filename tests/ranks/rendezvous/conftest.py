"""Ranks that are threads, stores in which something happens, and meetings whose time is up when a test says so."""

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from torch.distributed import PrefixStore, Store

from tests.support.waiting import until
from unisono.base.errors import ArgumentError, OutOfMemory, PeerError, WaitTimeout
from unisono.base.records import DepartureKind
from unisono.ranks.rendezvous import meeting
from unisono.ranks.rendezvous.entries import write
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.meeting import Meeting, MeetingResult

Act = Callable[[str, str], object]

here = threading.local()
"""rank: that this thread is. special: the fields in which its identity is special."""


def meet(rank: int, size: int, store: Store, timeout_s: float = 60.0, *how: Any, **options: Any) -> MeetingResult:
    """What a rank has when all have met."""
    return Meeting(rank, size, store, timeout_s, *how, **options).hold()


def outcome(act: Callable[[int], Any], rank: int, special: Callable[[int], dict[str, Any]] = lambda _: {}) -> Any:
    """What the function returns for this rank, which is this thread from now on, or raises."""
    here.rank, here.special = rank, special(rank)
    try:
        return act(rank)
    except (ArgumentError, OutOfMemory, PeerError, WaitTimeout) as error:
        return error


def together(act: Callable[[int], Any], ranks: Iterable[int], **how: Any) -> list[Any]:
    """The same of several ranks at once."""
    with ThreadPoolExecutor(len(ranks := [*ranks])) as pool:
        return list(pool.map(partial(outcome, act, **how), ranks))


def expect_one_arena(met: Sequence[Any]) -> None:
    """They have met each other, and share memory."""
    assert not [error for error in met if isinstance(error, Exception)]
    words = secrets.token_hex(4)
    met[0].arena.board(1).set_gone(DepartureKind.LEFT, words)
    assert [str(one.arena.board(1).gone) for one in met] == [words] * len(met)
    close(met)


def close(met: Sequence[MeetingResult]) -> None:
    """They need their memory no more."""
    for one in met:
        one.arena.close()


@pytest.fixture
def threads_are_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads of this process pass for processes: each has an identity of its own, and the kernel is not asked."""
    mine, here.special = Identity.mine, {}

    def own(_: object, *how: Any) -> Identity:
        special = getattr(here, "special", {})
        return mine(*how)._replace(**{"pid": threading.get_ident(), "ticks": 0, **special})

    monkeypatch.setattr(Identity, "mine", classmethod(own))
    monkeypatch.setattr(Identity, "is_at", lambda _self, _channel: True)
    yield
    here.special = {}


def _nothing(*_: object) -> None:
    """What happens at a store that is like any other."""


class Acting(Store):  # type: ignore[misc]
    """A store as one rank sees it: before and after each question something happens, with the method and the key.

    What `before` raises is raised instead: RuntimeError, as if the store has gone; TimeoutError, as if it is silent.

    asked: the last question.
    """

    def __init__(self, store: Store, before: Act = _nothing, after: Act = _nothing) -> None:
        super().__init__()
        self.store, self.before, self.after = store, before, after


def _method(name: str) -> Callable[..., Any]:
    def ask(acting: Acting, key: Any, *more: Any) -> Any:
        acting.asked, last = (name, key, *more), key if isinstance(key, str) else key[-1]
        acting.before(name, last)
        answer = getattr(acting.store, name)(key, *more)
        acting.after(name, last)
        return answer

    return ask


for _name in ("set", "compare_set", "add", "check", "get"):
    setattr(Acting, _name, _method(_name))


class Came(list[Meeting]):
    """The ranks' parts in meetings, as soon as others can see that they have come."""

    def of(self, rank: int) -> list[Meeting]:
        """The parts of one rank."""
        return [part for part in self if part._rank == rank]

    def time_is_up(self, *ranks: int) -> None:
        """Let the time of the last part of each of these ranks be up, as soon as all have come."""
        until(lambda: all(self.of(rank) for rank in ranks))
        for rank in ranks:
            self.of(rank)[-1]._deadline = 0.0


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> Came:
    """Who has come, from now on. No rank waits a second for a reason."""
    monkeypatch.setattr(meeting, "_REASON_S", 0.3)
    come, came = Meeting._come, Came()
    monkeypatch.setattr(Meeting, "_come", lambda part: (come(part), came.append(part)))
    return came


def ended(**special: Any) -> Identity:
    """A rank whose process has ended."""
    return Identity.mine()._replace(**{"pid": 1 << 30, "ticks": 1, **special})


def begun(store: Store, first: Identity) -> PrefixStore:
    """The part of the store of a meeting that this rank 0 has begun."""
    store.set(meeting.NOTICE, write(first))
    return PrefixStore(first.listens_at, store)


def planned(store: Store) -> PrefixStore:
    """The part of the store of the meeting that this thread will begin as rank 0."""
    here.special = {"listens_at": f"unisono-{secrets.token_hex(16)}"}
    return PrefixStore(here.special["listens_at"], store)
