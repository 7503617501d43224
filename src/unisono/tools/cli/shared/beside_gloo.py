"""Gloo, as it comes with torch, in the same ranks as unisono."""

from __future__ import annotations

import datetime
import functools
import os
from typing import Any

from torch._C import _distributed_c10d
from torch.distributed import FileStore, distributed_c10d, init_process_group  # type: ignore[attr-defined]

import unisono

ENGINES = ("unisono", "Gloo")
"""What `bench` and `make demo` compare, by the names that they print."""


@functools.cache
def start_gloo(folder: str, timeout_s: float = 120.0) -> None:
    """Make Gloo torch's default process group over the calling ranks. They meet in `folder`, so no port is needed.

    Gloo talks over the loopback interface, its fastest transport within a host; its threads are not pinned.
    """
    rank, ranks = unisono.get_rank(), unisono.get_world_size()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = FileStore(f"{folder}/gloo-{ranks}", ranks)
    limit = datetime.timedelta(seconds=timeout_s)
    places: Any = distributed_c10d
    places.ProcessGroupGloo = _distributed_c10d.ProcessGroupGloo  # torch's own, also where ours has taken its place
    init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
