"""A store of torch, asked with a limit; and what to raise where it does not answer, or has gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ...base.errors import WaitTimeout
from ...hosts.addresses import store_place
from .limited import Limited
from .quiet_torch import quiet_torch
from .unmet import store_closed, store_silent

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

_AT_LEAST_S = 1.0
"""How long a question may take whose time is up already."""
T = TypeVar("T")


class AskedStore:
    """What a meeting needs of torch's stores. Raises RuntimeError where the store has gone, TimeoutError where it has
    not answered by the deadline. look: called now and then while it does not answer; may raise.
    """

    def __init__(self, store: Store, deadline: float, look: Callable[[], object] = lambda: None) -> None:
        self._store, self._deadline, self._look, self._thread = store, deadline, look, Limited()
        self.where = store_place(store)

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self._ask(lambda: self._store.set(key, value))

    def set_first(self, key: str, value: str) -> bytes:
        """Set a key that is not set; what it is set to then."""
        return self.replace(key, "", value)

    def replace(self, key: str, old: str, new: str) -> bytes:
        """Set a key that is set to `old`, or "": not set; what it is set to then."""
        return self._ask(lambda: bytes(self._store.compare_set(key, old, new)))

    def check(self, keys: list[str]) -> bool:
        """Are these keys set?"""
        return self._ask(lambda: bool(self._store.check(keys)))

    def get(self, key: str) -> bytes:
        """The value of a key that is set."""
        return self._ask(lambda: bytes(self._store.get(key)))

    def _ask(self, question: Callable[[], T]) -> T:
        def ask() -> T:
            with quiet_torch():
                return question()

        return self._thread.call(ask, max(self._deadline, time.monotonic() + _AT_LEAST_S), self._look)

    def close(self) -> None:
        """Ask no more; the store stays."""
        self._thread.close()


@contextmanager
def at_store(where: str, rank: int, began: float, look: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Raise what has happened to the store. look: raises if a rank that has died is the reason."""
    asked = time.monotonic()
    try:
        yield
    except WaitTimeout:
        raise
    except TimeoutError as error:
        look()
        now = time.monotonic()
        raise store_silent(where, rank, now - began, now - asked) from error
    except RuntimeError as error:
        look()
        raise store_closed(where, rank, error) from error
