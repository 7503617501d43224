"""Two process groups of torch.distributed over the same ranks, one on our backend and one on Gloo."""

from __future__ import annotations

import datetime
import functools
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import unisono

from ..names import GLOO, OURS
from ..rendezvous import Rendezvous


class Groups:
    """contenders: the groups by name. meet: a barrier that uses neither."""

    def __init__(self, folder: str) -> None:
        rank, ranks = unisono.get_rank(), unisono.get_world_size()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        patience = datetime.timedelta(seconds=120)
        meeting = f"file://{folder}/torch-{ranks}"
        dist.init_process_group("unisono", meeting, timeout=patience, rank=rank, world_size=ranks)
        self.contenders: dict[str, Any] = {OURS: dist.group.WORLD, GLOO: dist.new_group(backend="gloo")}
        self.meet = Rendezvous(Path(folder) / f"torch-ranks-{ranks}", rank, ranks)

    @staticmethod
    @functools.cache
    def get(folder: str) -> Groups:
        """The groups of this rank; the first call makes them."""
        return Groups(folder)
