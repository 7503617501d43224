"""Memory of refused calls over hosts (a mismatch): a carrier may still move their messages, so it is not free."""

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
    """All refused calls of a carrier. The carrier keeps the memory of their messages. This keeps the user's tensors
    that it sends from. All this memory is free when the carrier is dropped.
    """

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._calls = self._nbytes = 0

    @classmethod
    def of(cls, carrier: Carrier) -> RefusedCalls:
        """The refused calls of a carrier."""
        return _OF.setdefault(carrier, cls())

    def add(self, nbytes: int) -> None:
        """Count one more refused call. nbytes: the memory of its messages."""
        self._calls += 1
        self._nbytes += nbytes

    def keep(self, memory: Iterable[object]) -> None:
        """Keep the storages of the last call's tensors. memory: has them, perhaps among other objects."""
        for storage in memory:
            if isinstance(storage, torch.UntypedStorage) and storage.data_ptr() not in self._storages:
                self._storages[storage.data_ptr()] = storage
                self._nbytes += storage.nbytes()

    def check(self, arena: Arena, ranks: int) -> None:
        """Raise OutOfMemory if refused calls take more memory than the host has left, if each rank has as many."""
        try:
            arena.check_free(self._nbytes * ranks)
        except OutOfMemory as error:
            raise OutOfMemory(
                f"{self._calls} calls over hosts that ended with a MismatchError hold {format_bytes(self._nbytes)} on "
                f"this rank until the world is closed, and {format_bytes(arena.free_bytes)} are free on this host. Let "
                "all ranks make the same calls: see the MismatchError that this program catches."
            ) from error


_OF: WeakKeyDictionary[Any, RefusedCalls] = WeakKeyDictionary()
