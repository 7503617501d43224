"""What is changed in torch itself: `monitored_barrier` asks for Gloo by its name, DDP forgets a work's Python half."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from torch import distributed
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from .calls import Calls

__all__ = ["patch_torch"]

_MARK = "_unisono"


def patch_torch() -> None:
    """Let torch's own functions take our groups and works, too; what they do with others stays. Idempotent."""
    _change(_with_our_barrier, "monitored_barrier", distributed, distributed_c10d)
    _change(_with_works_kept, "_set_forward_pass_work_handle", c10d.Reducer)


def _change(change: Callable[[Any], Any], name: str, *places: Any) -> None:
    original = getattr(places[0], name)
    if not hasattr(original, _MARK):
        changed = wraps(original)(change(original))
        setattr(changed, _MARK, True)
        for place in places:
            setattr(place, name, changed)


def _with_our_barrier(original: Any) -> Any:
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        asked = distributed_c10d._get_default_group() if group is None else group  # noqa: SLF001  as the original does
        if not isinstance(asked, Calls):
            original(group, timeout, wait_all_ranks)
            return
        given = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        asked.monitored_barrier(given, wait_all_ranks)

    return monitored_barrier


def _with_works_kept(original: Any) -> Any:
    """Within `join`, a forward pass of DDP begins a call whose work its C++ code waits for in the backward pass.

    C++ keeps the half of the work that is its own. Without the other half, in Python, it would wait for ever.
    """
    works: Any = weakref.WeakKeyDictionary()

    def set_forward_pass_work_handle(reducer: Any, work: Any, *args: Any, **options: Any) -> None:
        works[reducer] = work
        original(reducer, work, *args, **options)

    return set_forward_pass_work_handle
