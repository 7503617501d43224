"""Tests of the torch backend run in live ranks, each function in a process group of its own."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import unisono
from tests.support.on_ranks import Decorator, Worlds, on_ranks
from unisono.integrations.torch import register
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
    from torch._C._distributed_c10d import DebugLevel, set_debug_level

    set_debug_level(DebugLevel.DETAIL)
    try:
        yield
    finally:
        set_debug_level(DebugLevel.OFF)


def options(kind: Any, **fields: Any) -> Any:
    """Options of a call, or of a group, with these fields."""
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def total(group: Any = None) -> Any:
    """The sum of 10 to the power of each member's rank, as ranks of the default group, if there is one."""
    group = group or distributed.group.WORLD
    tensor = torch.tensor([10.0 ** (distributed.get_rank() if distributed.is_initialized() else group.rank())])
    group.allreduce([tensor]).wait()
    return tensor.item()


class TorchRanks:
    """`ranks(3)(function)`: the function, on three ranks, between init_process_group and destroy."""

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
                register()
                me, before = unisono.get_rank(), os.environ.get(HOST_ID, "")
                if shape is not None:
                    os.environ[HOST_ID] = f"{shape.host_of(me)}"
                with answering() if named is not None and me in named else nullcontext():
                    try:
                        place: Any = {"rank": me, "world_size": unisono.get_world_size()}
                        distributed.init_process_group(backend, meeting, timeout=timedelta(seconds=60), **place)
                        return function(*args)
                    finally:
                        os.environ[HOST_ID] = before
                        if distributed.is_initialized():
                            if backend == "gloo":
                                keep(distributed.distributed_c10d._world.pg_map)
                            distributed.destroy_process_group()

            return self._worlds(size).run(rank)

        return run


def in_process_group(size: int | str, backend: str | None = "unisono", **how: Any) -> Decorator:
    """Decorator: run the test on ranks of a process group; how: see `TorchRanks`."""

    def run(test: Callable[..., Any], given: dict[str, Any], ranks: Any, **how: Any) -> Any:
        return ranks(**how)(lambda: test(**given))

    return on_ranks(run, ("ranks",), size=size, backend=backend, **how)


def as_over_gloo(shape: int | str, *names: str) -> Decorator:
    """Decorator: on process groups of this shape, the test must return exactly what it returns over Gloo.

    It must return several values. With two ranks, sums have one order, so their bits agree. names: of our groups,
    "unisono" or "gloo"; the first by default.
    """

    def run(test: Callable[..., Any], given: dict[str, Any], ranks: Any, shape: Any) -> Any:
        hosts = Hosts.parse(f"{shape}")
        size, on_hosts = hosts.ranks, f"{shape}" if hosts.spans else ""
        theirs = ranks(size, "gloo")(lambda: test(**given))
        assert len(_leaves(theirs[0])) > 1
        for name in names or ["unisono"]:
            named = range(size) if name == "gloo" else None
            ours = ranks(size, name, hosts=on_hosts, named=named)(lambda: test(**given))
            pairs = [pair for rank in zip(ours, theirs, strict=True) for pair in zip(*rank, strict=False)]
            assert ours == theirs, f"{name}: {[pair for pair in pairs if pair[0] != pair[1]][:3]}"
        return theirs

    return on_ranks(run, ("ranks",), shape=shape)


def _leaves(found: Any) -> set[Any]:
    return set().union(*map(_leaves, found)) if isinstance(found, list | tuple) else {found}
