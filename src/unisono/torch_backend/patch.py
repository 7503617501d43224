"""The one function of torch.distributed that has to be changed: `monitored_barrier` asks for Gloo by its name."""

from __future__ import annotations

from datetime import timedelta
from functools import wraps
from typing import Any

from torch import distributed
from torch.distributed import distributed_c10d

from .calls import Calls

__all__ = ["open_monitored_barrier"]

_MARK = "_unisono"


def open_monitored_barrier() -> None:
    """Let `torch.distributed.monitored_barrier` take our groups, too; what it does with others stays. Idempotent."""
    original: Any = distributed_c10d.monitored_barrier
    if hasattr(original, _MARK):
        return

    @wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        asked = distributed_c10d._get_default_group() if group is None else group  # noqa: SLF001  as the original does
        if not isinstance(asked, Calls):
            original(group, timeout, wait_all_ranks)
            return
        given = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        asked.monitored_barrier(given, wait_all_ranks)

    setattr(monitored_barrier, _MARK, True)
    for module in (distributed, distributed_c10d):
        module.monitored_barrier = monitored_barrier  # type: ignore[attr-defined]
