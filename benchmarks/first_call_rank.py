"""One rank of `benchmarks.first_call`: it prints what its first group and its first call cost, by part.

    python first_call_rank.py BACKEND

It runs as a script, so that it imports nothing but torch before the clock starts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's __all__ omits it

PARTS = {
    "machine code": ("engine.machine_code:Unit.__init__", "engine.machine_code:Unit.address"),
    "memory": (
        "engine.memory.arena:Arena.create", "engine.memory.arena:Arena.attach",
        "engine.memory.arena:Arena.reserve_staging",
    ),
    "meeting": ("integrations.torch.join_group:enter_meeting", "integrations.torch.join_group:_meet"),
    "plan": ("calls.dispatch.step:make_plan",),
}  # fmt: skip
"""Part -> the functions that do it. A part within another part counts for itself only."""


class Clock:
    """Milliseconds of processor time, of all threads of this process, by part."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._inner = [0.0]

    def run(self, part: str, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Call a function; what it takes counts for this part, less what parts within it take."""
        began = time.process_time()
        self._inner.append(0.0)
        try:
            return function(*args, **keywords)
        finally:
            took = 1e3 * (time.process_time() - began)
            self.spent[part] = self.spent.get(part, 0.0) + took - self._inner.pop()
            self._inner[-1] += took

    def watch(self, part: str, place: str) -> None:
        """Count each call of a function of unisono for a part. place: module:name or module:class.name."""
        module, _, name = place.partition(":")
        owner: Any = import_module(f"unisono.{module}")
        *classes, name = name.split(".")
        for each in classes:
            owner = getattr(owner, each)
        bound = isinstance(vars(owner)[name], classmethod)
        function = getattr(owner, name)

        def counted(*args: Any, **keywords: Any) -> Any:
            return self.run(part, function, *args, **keywords)

        setattr(owner, name, staticmethod(counted) if bound else counted)


def imports() -> None:
    """Import what makes process groups, as the first group does."""
    from unisono.base.python import no_collections

    with no_collections():
        import_module("unisono.integrations.torch.create")


def main(backend: str) -> None:
    """Make a group of two ranks and call all_reduce."""
    clock, rank = Clock(), int(os.environ["RANK"])
    began = time.perf_counter()
    if backend == "unisono":
        clock.run("imports", imports)
        for part, places in PARTS.items():
            for place in places:
                clock.watch(part, place)
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = clock.run("torch's store", TCPStore, *address, 2, rank == 0)
    clock.run("the rest of the group", distributed.init_process_group, backend, store=store, rank=rank, world_size=2)
    vector = torch.full((2,), 1.0 + rank)
    clock.run("the rest of the call", distributed.all_reduce, vector)
    wall_ms = 1e3 * (time.perf_counter() - began)
    if vector.tolist() != [3.0, 3.0]:
        raise RuntimeError(f"the sum of 1 and 2 is {vector.tolist()}")
    print(json.dumps({**clock.spent, "wall": wall_ms}), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
