"""Carriers: transports of other projects that move bytes between two ranks. They do not know collectives."""

from __future__ import annotations

import time

from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

from ...base.python import nap

_FIRST_S, _LONGEST_S = 0.001, 0.02  # the first and the longest pause between two questions to the store


def await_key(store: Store, key: str, until: float) -> bool:
    """Wait until the store has a key; False if it does not come in time. Raises RuntimeError if the store has gone.

    until: by `time.monotonic`. The store's own `wait` would keep this process's other threads from the store meanwhile.
    """
    began = time.monotonic()
    while not store.check([key]):
        if time.monotonic() > until:
            return False
        nap(began, _FIRST_S, _LONGEST_S)
    return True
