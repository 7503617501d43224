"""Tests of the torch backend run in live ranks, each function in a process group of its own."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import unisono
from tests.support.worlds import Worlds
from unisono.ranks.rendezvous.identity import HOST_ID
from unisono.schedule import Hosts

_kept: list[Any] = []


def keep(groups: Any) -> None:
    """Let groups of Gloo live as long as their rank.

    What its thread has called (hooks of DDP) may have the last reference to the group, whose end then joins that
    thread, from itself: the process dies of "Resource deadlock avoided" (std::terminate in ~ProcessGroupGloo).
    """
    _kept.extend(groups)


@contextmanager
def answering() -> Iterator[None]:
    """Answer to Gloo's name in this process, for so long."""
    from torch import distributed

    places: Any = (distributed, distributed.distributed_c10d)
    genuine = places[0].ProcessGroupGloo
    try:
        unisono.answer_to("gloo")
        yield
    finally:
        for place in places:
            place.ProcessGroupGloo = genuine
        os.environ.pop("UNISONO_AS", None)


@contextmanager
def detail() -> Iterator[None]:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    from torch import distributed

    known: Any = distributed  # torch's __all__ omits these names
    known.set_debug_level(known.DebugLevel.DETAIL)
    try:
        yield
    finally:
        known.set_debug_level(known.DebugLevel.OFF)


def options(kind: Any, **fields: Any) -> Any:
    """Options of a call, or of a group, with these fields."""
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def total(group: Any = None) -> Any:
    """The sum of 10 to the power of each member's rank, as ranks of the default group, if there is one."""
    import torch
    from torch import distributed

    group = group or distributed.group.WORLD
    tensor = torch.tensor([10.0 ** (distributed.get_rank() if distributed.is_initialized() else group.rank())])
    group.allreduce([tensor]).wait()
    return tensor.item()


class TorchRanks:
    """`ranks(3)(function, *args)`: the function, on three ranks, between init_process_group and destroy."""

    def __init__(self, worlds: Worlds, directory: Path) -> None:
        self._worlds, self.directory, self._runs = worlds, directory, 0

    def __call__(
        self, size: int, backend: str | None = "unisono", *, hosts: str = "", named: Collection[int] | None = None
    ) -> Callable[..., list[Any]]:
        """hosts: as which hosts these ranks meet, such as "2+1". named: those that answer to Gloo's name."""
        self._runs += 1
        meeting = f"file://{self.directory}/meeting-{self._runs}"
        shape = Hosts.parse(hosts) if hosts else None

        def run(function: Callable[..., Any], *args: Any) -> list[Any]:
            def rank() -> Any:
                from datetime import timedelta

                from torch import distributed

                from unisono.integrations.torch import register

                register()
                before = os.environ.get(HOST_ID, "")
                if shape is not None:
                    os.environ[HOST_ID] = f"{shape.host_of(unisono.get_rank())}"
                with answering() if named is not None and unisono.get_rank() in named else nullcontext():
                    try:
                        distributed.init_process_group(
                            backend,
                            meeting,
                            timeout=timedelta(seconds=60),
                            rank=unisono.get_rank(),
                            world_size=unisono.get_world_size(),
                        )
                        return function(*args)
                    finally:
                        os.environ[HOST_ID] = before
                        if distributed.is_initialized():
                            if backend == "gloo":
                                keep(distributed.distributed_c10d._world.pg_map)
                            distributed.destroy_process_group()

            return self._worlds(size).run(rank)

        return run
