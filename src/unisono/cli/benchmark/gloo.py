"""Gloo, as it comes with torch, in the same ranks as ours."""

from __future__ import annotations

import datetime
import functools
import os

from torch.distributed import FileStore, init_process_group  # type: ignore[attr-defined]

import unisono

__all__ = ["start_gloo"]


@functools.cache
def start_gloo(folder: str) -> None:
    """Make Gloo torch's default process group over the calling ranks. They meet in `folder`, so no port is needed.

    It talks over the loopback interface, the best that it has within a host; its threads are not pinned.
    """
    rank, ranks = unisono.get_rank(), unisono.get_world_size()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = FileStore(f"{folder}/gloo-{ranks}", ranks)
    patience = datetime.timedelta(seconds=120)
    init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=patience)
