"""Tests of the torch backend run in live ranks, each function in a process group of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import unisono

Worlds = Callable[[int], unisono.World]


_kept: list[Any] = []


def _keep(groups: Any) -> None:
    """Let groups of Gloo live as long as their rank.

    What its thread has called (hooks of DDP) may have the last reference to the group, whose end then joins that
    thread, from itself: the process dies of "Resource deadlock avoided" (std::terminate in ~ProcessGroupGloo).
    """
    _kept.extend(groups)


class TorchRanks:
    """`ranks(3)(function, *args)`: the function, on three ranks, between init_process_group and destroy."""

    def __init__(self, worlds: Worlds, directory: Path) -> None:
        self._worlds, self._directory, self._runs = worlds, directory, 0

    def __call__(self, size: int, backend: str = "unisono") -> Callable[..., list[Any]]:
        self._runs += 1
        meeting = f"file://{self._directory}/meeting-{self._runs}"

        def run(function: Callable[..., Any], *args: Any) -> list[Any]:
            def rank() -> Any:
                from datetime import timedelta

                from torch import distributed

                from unisono.torch_backend import register

                register()
                distributed.init_process_group(
                    backend,
                    meeting,
                    timeout=timedelta(seconds=60),
                    rank=unisono.get_rank(),
                    world_size=unisono.get_world_size(),
                )
                try:
                    return function(*args)
                finally:
                    if distributed.is_initialized():
                        if backend == "gloo":
                            _keep(distributed.distributed_c10d._world.pg_map)
                        distributed.destroy_process_group()

            return self._worlds(size).run(rank)

        return run
