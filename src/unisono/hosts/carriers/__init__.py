"""Carriers: engines of other projects that move bytes between two ranks. They do not know collectives."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...engine.carrier import Carrier, Handle, Lost

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

__all__ = ["Carrier", "Handle", "Lost", "await_key"]

_ASK_S = 0.001


def await_key(store: Store, key: str, until: float) -> bool:
    """Wait until the store has a key; False if it does not come in time. Raises RuntimeError if the store has gone.

    until: by `time.monotonic`. The store's own `wait` would keep this process's other threads from the store meanwhile.
    """
    while not store.check([key]):
        if time.monotonic() > until:
            return False
        time.sleep(_ASK_S)
    return True
