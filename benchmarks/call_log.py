"""What the logs of calls, of messages and of rows cost: with them and without them, in turns in one run.

    python -m benchmarks.call_log [ranks]

Calls are made by the kernel and by the same kernel compiled without its log. The log of rows, which only a trace with
rounds has, comes on top of it.

Times are of rank 0, in microseconds: of the mean time of a call or step in each turn, the least and the median. On a
busy machine the least says more.
"""

from __future__ import annotations

import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

import unisono
from unisono.engine.host import interpreter
from unisono.engine.kernels import SOURCES
from unisono.engine.logs.message_log import MessageLog
from unisono.engine.logs.row_log import row_log_bytes
from unisono.engine.machine_code import Unit, entry_point
from unisono.ranks.group.group import _alive

TURNS, MESSAGES = 100, 100
_LEFT_OUT = {
    "        _log(plan, state)\n": "        pass\n",
    "    store_release(numbers + stride * me, number)\n    _log(plan, state)\n": (
        "    store_release(numbers + stride * me, number)\n"
    ),
    "            put(_entry(state), LogWord.LEFT, cycles())\n": "",
}


def without_log() -> Callable[..., int]:
    """The kernel, compiled without what it writes to the log."""

    def make() -> bytes:
        from unisono.engine.kernels import interpret
        from unisono.engine.kernels.compiled import object_file

        source = Path(interpret.__file__).read_text()
        for line, other in _LEFT_OUT.items():
            if source.count(line) != 1:
                raise RuntimeError(f"the kernel has changed: {line}")
            source = source.replace(line, other)
        names: dict[str, Any] = {"__package__": interpret.__package__, "__name__": interpret.__name__}
        exec(compile(source, interpret.__file__, "exec"), names)  # noqa: S102  own code
        return object_file("benchmark.run", names["run"])

    return entry_point(Unit("benchmark.run", (*SOURCES, Path(__file__)), make))


def set_kernel(name: str) -> None:
    """Let calls be made with the log, or without."""
    if not _kernels:
        _kernels.update({"with": interpreter(), "without": without_log()})
    for group in list(_alive):
        group.run = _kernels[name]


def set_rows(name: str) -> None:
    """Let the rows of calls be logged, or not."""
    if not _row_memory:
        _row_memory.append(mmap.mmap(-1, row_log_bytes(1 << 16)))
    for group in list(_alive):
        group.host.log_rows_to(_row_memory[0] if name == "with" else None)
        group.run = group.host.run


_row_memory: list[mmap.mmap] = []
_kernels: dict[str, Callable[..., int]] = {}
_writes = {"with": MessageLog.write, "without": lambda *_: 0}


def set_messages(name: str) -> None:
    """Let messages be logged, or not."""
    MessageLog.write = _writes[name]  # type: ignore[method-assign]


def turns(
    call: Callable[[], Any], calls: int, set_log: Callable[[str], None] = set_kernel
) -> dict[str, tuple[float, float]]:
    """Mean times of a call with and without the log, in turns."""
    times: dict[str, list[float]] = {"with": [], "without": []}
    for turn in range(2 * TURNS + 2):
        name = ("with", "without", "without", "with")[turn % 4]
        set_log(name)
        for _ in range(calls // 10 + 1):
            call()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        took = (time.perf_counter() - start) / calls * 1e6
        if turn > 1:
            times[name].append(took)
    return {name: (min(took), statistics.median(took)) for name, took in times.items()}


def work(place: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Every case on this rank."""
    torch.set_num_threads(1)
    rank, ranks = unisono.get_rank(), unisono.get_world_size()
    store = dist.FileStore(place, ranks)  # type: ignore[attr-defined]
    dist.init_process_group("unisono", rank=rank, world_size=ranks, store=store, timeout=timedelta(seconds=60))
    small, large = torch.ones(2), torch.ones(1 << 14)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    trained = torch.nn.parallel.DistributedDataParallel(model)
    data = torch.randn(32, 256)

    def step() -> None:
        trained.zero_grad()
        trained(data).square().mean().backward()

    unisono.all_reduce(small)
    group = unisono.init()
    plan, at = next(iter(group.shortcuts.values())), small.data_ptr()

    def kernel_alone() -> None:
        while group.run(plan.address, at, at, group.state):  # a peer has been late for long
            pass

    def messages() -> None:
        """From each rank to the next one: they wait in shared memory, and no rank waits but in the barrier."""
        for _ in range(MESSAGES):
            unisono.send(small, (rank + 1) % ranks)
        unisono.barrier()
        for _ in range(MESSAGES):
            unisono.recv(small, (rank - 1) % ranks)

    found = {
        "the kernel alone, 8 B": turns(kernel_alone, 500),
        "all_reduce, 8 B": turns(lambda: unisono.all_reduce(small), 500),
        "all_reduce, 64 KiB": turns(lambda: unisono.all_reduce(large, "max"), 100),
        "a step of DistributedDataParallel": turns(step, 2),
    }
    found |= {
        "the kernel alone, 8 B, rows": turns(kernel_alone, 500, set_rows),
        "all_reduce, 8 B, rows": turns(lambda: unisono.all_reduce(small), 500, set_rows),
        "all_reduce, 64 KiB, rows": turns(lambda: unisono.all_reduce(large, "max"), 100, set_rows),
    }
    set_rows("without")
    batch = turns(messages, 2, set_messages)
    found["a message sent and one received, 8 B"] = {
        name: (least / MESSAGES, median / MESSAGES) for name, (least, median) in batch.items()
    }
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if sys.argv[1:] else 2
    print(f"{ranks} ranks, {os.cpu_count()} processors{'':19}least: without     with   more   median: without     with")
    with TemporaryDirectory() as folder:
        for name, took in unisono.run(work, args=(f"{folder}/store",), ranks=ranks)[0].items():
            (least, median), (least_with, median_with) = took["without"], took["with"]
            more = f"{least_with / least - 1:7.1%}"
            print(f"  {name:41}{least:12.2f} {least_with:8.2f}{more}{median:18.2f} {median_with:8.2f}")
