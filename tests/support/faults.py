"""Scenes of ranks that die: how they do so, and what the others keep of it."""

import os
import signal
from typing import Any

import torch

import unisono

DEADLINE_S = 60.0
"""For a whole run, in which nothing takes long: but busy processors may take 20 s to start its processes."""


def die(how: str = "SIGKILL") -> None:
    """End this process as nothing can stop it: by a signal, or with the exit code 3."""
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


class _Failed:
    """Equal to the failure of any rank, as `return_exceptions` brings it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, unisono.RankFailed)

    __hash__ = None  # type: ignore[assignment]


FAILED: Any = _Failed()


def all_pids() -> list[int]:
    """The processes of all ranks, which all of them ask for."""
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(unisono.get_world_size())]
    unisono.all_gather(pids, torch.tensor([os.getpid()]))
    return [int(pid) for pid in pids]
