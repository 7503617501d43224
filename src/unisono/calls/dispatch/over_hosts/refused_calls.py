"""Memory of calls over hosts that a mismatch has refused: their messages may still be moved, so it is not free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ....base.errors import OutOfMemory
from ....base.units import format_bytes
from ....engine.carrier import Carrier
from ....engine.memory.arena import Arena


class RefusedCalls:
    """All refused calls of a carrier. It keeps the memory of their messages itself; here are the user's tensors that it
    sends from. All of that is free when nobody has the carrier any more.
    """

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._calls = self._nbytes = 0

    @classmethod
    def of(cls, carrier: Carrier) -> RefusedCalls:
        """Those of a carrier."""
        return _OF.setdefault(carrier, cls())

    def add(self, nbytes: int) -> None:
        """One more. nbytes: of memory for its messages."""
        self._calls += 1
        self._nbytes += nbytes

    def keep(self, memory: Iterable[object]) -> None:
        """The tensors of the last one: their storages, perhaps among other things."""
        for storage in memory:
            if isinstance(storage, torch.UntypedStorage) and storage.data_ptr() not in self._storages:
                self._storages[storage.data_ptr()] = storage
                self._nbytes += storage.nbytes()

    def check(self, arena: Arena, ranks: int) -> None:
        """Raise OutOfMemory if this host has less memory left than it holds for its ranks, if each has as much."""
        try:
            arena.check_free(self._nbytes * ranks)
        except OutOfMemory as error:
            raise OutOfMemory(
                f"{self._calls} calls over hosts that ended with a MismatchError hold {format_bytes(self._nbytes)} on "
                f"this rank until the world is closed, and {format_bytes(arena.free_bytes)} are free on this host. Let "
                "all ranks make the same calls: see the MismatchError that this program catches."
            ) from error


_OF: WeakKeyDictionary[Any, RefusedCalls] = WeakKeyDictionary()
