"""Rank 0's process may run the store. Where rank 0 has told there why there is no group, its process stays for a moment
when it ends: ranks that come late would look for a store that is not there until their time is up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from .asked_store import AskedStore

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

_LATE_S = 3.0
"""How much later ranks may come than the end of the meeting."""
_ASK_S = 0.005


def stay_for(store: Store, ranks: Sequence[int]) -> None:
    """Keep this process for a moment, until these ranks, too, have heard at the store how a meeting has ended."""
    if ranks:
        # No daemon: a process ends after its threads.
        threading.Thread(target=_stay, args=(store, ranks), name="unisono tells late ranks", daemon=False).start()


def _stay(store: Store, ranks: Sequence[int]) -> None:
    until = time.monotonic() + _LATE_S
    with suppress(RuntimeError, TimeoutError), closing(AskedStore(store, until)) as asked:
        for rank in ranks:
            while not asked.check([f"told {rank}"]) and time.monotonic() < until:
                time.sleep(_ASK_S)
