"""One rank of `benchmarks.first_call`: it prints what its first group and its first call cost, by part.

    python first_call_rank.py BACKEND HOSTS

HOSTS: 1, or more: then the ranks are at torch's store before the clock starts, as ranks of torchrun are. The rank says
that it is ready, and begins when it is told, as all others. It runs as a script, so that it imports nothing but torch
before the clock starts.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
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

OVER_HOSTS = {
    "sentinel, carrier": (
        "ranks.group.world_over_hosts:_Joining.far",
        "ranks.group.world_over_hosts:Connecting.carrier",
    )
}
"""The same, on several hosts."""


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
            owner = getattr(owner, each, None)
        if owner is None:
            return  # another version
        bound = isinstance(vars(owner)[name], classmethod)
        function = getattr(owner, name)

        def counted(*args: Any, **keywords: Any) -> Any:
            return self.run(part, function, *args, **keywords)

        setattr(owner, name, staticmethod(counted) if bound else counted)


def imports(modules: Iterable[str]) -> None:
    """Import modules of unisono, as the first group does."""
    from unisono.base.python import no_collections

    with no_collections():
        for module in modules:
            import_module(f"unisono.{module}")


def sentinel_ms() -> float:
    """The processor time of this host's sentinel, if this rank has started it."""
    from unisono.ranks.group.current import get_default

    group: Any = get_default()
    _, *others = group.span.here
    if group.rank in others:
        return 0.0
    while not (pid := group.span.far.sentinel_pid):  # it has not said yet that it serves
        time.sleep(0.001)
    started = resource.getrusage(resource.RUSAGE_CHILDREN)  # the process that has loaded it, and whose child it is
    nanoseconds = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return 1e3 * (started.ru_utime + started.ru_stime) + nanoseconds / 1e6


def main(backend: str, hosts: int) -> None:
    """Make a group of all ranks and call all_reduce."""
    clock, rank, size = Clock(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, store = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), None
    if hosts > 1:
        store = TCPStore(*address, size, rank == 0)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    if backend == "unisono":
        more = OVER_HOSTS if hosts > 1 else {}
        places = [(part, place) for part, of_part in (PARTS | more).items() for place in of_part]
        later = [place.partition(":")[0] for of_part in more.values() for place in of_part]
        clock.run("imports", imports, ["integrations.torch.process_group", *later])
        for part, place in places:
            clock.watch(part, place)
    if store is None:
        store = clock.run("torch's store", TCPStore, *address, size, rank == 0)
    clock.run("the rest of the group", distributed.init_process_group, backend, store=store, rank=rank, world_size=size)
    vector = torch.full((2,), 1.0 + rank)
    clock.run("the rest of the call", distributed.all_reduce, vector)
    wall_ms = 1e3 * (time.perf_counter() - began)
    if vector.tolist() != [size * (size + 1) / 2] * 2:
        raise RuntimeError(f"the sum of 1 to {size} is {vector.tolist()}")
    more_ms = {"the sentinel itself": sentinel_ms()} if hosts > 1 and backend == "unisono" else {}
    print(json.dumps({**clock.spent, **more_ms, "wall": wall_ms}), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
