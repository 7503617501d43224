"""Ranks that are threads, and stores in which something happens."""

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, partialmethod
from typing import Any

import pytest
from torch.distributed import PrefixStore, Store

from unisono.base.errors import ArgumentError, OutOfMemory, PeerError, WaitTimeout
from unisono.base.records import DepartureKind
from unisono.ranks.rendezvous.entries import read, write
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.meeting import NOTICE, Meeting, MeetingResult

Act = Callable[[str, str], object]

here = threading.local()
"""special: the fields in which the identity of this thread is special."""


def meet(rank: int, size: int, store: Store, timeout_s: float = 60.0, *how: Any, **options: Any) -> MeetingResult:
    """What a rank has when all have met."""
    return Meeting(rank, size, store, timeout_s, *how, **options).hold()


def outcome(act: Callable[[int], Any], rank: int, special: Callable[[int], dict[str, Any]] = lambda _: {}) -> Any:
    """What the function returns for this rank, which is this thread from now on, or raises."""
    here.special = special(rank)
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


class Acting(Store):
    """A store as one rank sees it: before and after each question something happens, with the method and the key.

    What `before` raises is raised instead: RuntimeError, as if the store has gone; TimeoutError, as if it is silent.

    asked: the last question.
    """

    def __init__(self, store: Store, before: Act = _nothing, after: Act = _nothing) -> None:
        super().__init__()
        self.store, self.before, self.after = store, before, after

    def _ask(self, name: str, key: Any, *more: Any) -> Any:
        self.asked, last = (name, key, *more), key if isinstance(key, str) else key[-1]
        self.before(name, last)
        answer = getattr(self.store, name)(key, *more)
        self.after(name, last)
        return answer

    set, compare_set, add = partialmethod(_ask, "set"), partialmethod(_ask, "compare_set"), partialmethod(_ask, "add")
    check, get = partialmethod(_ask, "check"), partialmethod(_ask, "get")


def has_come(store: Store, rank: int) -> bool:
    """Can others see that a rank has come to the meeting of the rank 0 that began last?"""
    if not store.check([NOTICE]):
        return False
    name = read(Identity, store.get(NOTICE), 0).listens_at
    return rank == 0 or bool(PrefixStore(name, store).check([f"rank {rank}"]))


def ended(**special: Any) -> Identity:
    """A rank whose process has ended."""
    return Identity.mine()._replace(**{"pid": 1 << 30, "ticks": 1, **special})


def begun(store: Store, first: Identity) -> PrefixStore:
    """The part of the store of a meeting that this rank 0 has begun."""
    store.set(NOTICE, write(first))
    return PrefixStore(first.listens_at, store)


def planned(store: Store) -> PrefixStore:
    """The part of the store of the meeting that this thread will begin as rank 0."""
    here.special = {"listens_at": f"unisono-{secrets.token_hex(16)}"}
    return PrefixStore(here.special["listens_at"], store)
