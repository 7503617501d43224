"""What lanes are worth: calls of ranks with one lane and with several, beside Gloo and Intel MPI, in turns.

    python -m benchmarks.lanes --ranks 2 --lanes 1,2

In a turn each contender makes one call that does not count, and then three that do. Before each of them a rank rewrites
its tensors, by one thread or, if the call's name ends with `+`, by PyTorch's threads, and the ranks meet. On a machine
with work of its own, turns begin where most of the processors are idle. Prints microseconds of the slowest rank: median
(least).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import typer

import unisono
from unisono.base.errors import PeerFailed, WaitTimeout
from unisono.base.units import format_bytes, parse_bytes
from unisono.calls.dispatch.plan_cache import forget_plans

from .mpi import MpiJob, find, make_call
from .reports import GLOO, INTEL_MPI, Output, describe, head, report_path
from .turns import Rendezvous, Times, slowest_rank

_SHARED, _PRIVATE = "shared", "private"
_MOST, _LEAST, _PAUSE_S, _LOOK_S = 40, 2, 0.0003, 0.04
"""Turns of a cell; the pause before each call, in which helpers go to sleep; how long it takes to see what is idle."""


class Cell(NamedTuple):
    """What is measured: a call on vectors of `nbytes`, all blocks together."""

    call: str
    nbytes: int
    lanes: tuple[int, ...]
    seconds: float
    least_idle: float

    @property
    def name(self) -> str:
        return self.call.removesuffix("+")

    @property
    def elements(self) -> int:
        """Of float32."""
        return self.nbytes // 4


class Contender(NamedTuple):
    """ready: called before each turn. fill: rewrites the tensors."""

    ready: Callable[[], object]
    fill: Callable[[], object]
    call: Callable[[], object]


def idle() -> float:
    """The share of the processors' time that nothing uses, in the next _LOOK_S."""

    def read() -> tuple[int, int]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return ticks[3], sum(ticks)

    before = read()
    time.sleep(_LOOK_S)
    after = read()
    return (after[0] - before[0]) / max(1, after[1] - before[1])


def in_turns(contenders: Mapping[str, Contender], meet: Rendezvous, cell: Cell) -> Times:
    """Seconds of each timed call on this rank."""
    times: Times = {name: [] for name in contenders}
    turns, end = 0, time.perf_counter() + cell.seconds
    while turns < _LEAST or meet.share(turns < _MOST and time.perf_counter() < end):
        if cell.least_idle and not meet.share(idle() >= cell.least_idle):
            turns += time.perf_counter() > end  # the processors are never idle
            continue
        turns += 1
        names = list(contenders)
        for name in names[turns % len(names) :] + names[: turns % len(names)]:
            contender = contenders[name]
            contender.ready()
            for timed in (False, True, True, True):
                contender.fill()
                time.sleep(_PAUSE_S)
                meet.barrier()
                begin = time.perf_counter()
                contender.call()
                took_s = time.perf_counter() - begin
                if timed:
                    times[name].append(took_s)
    return times


def _measure(cell: Cell, folder: str) -> Times:
    """On a rank of ours."""
    group = unisono.init()
    meet = Rendezvous(Path(folder, f"{cell.call}-{cell.nbytes}"), group.rank, group.size)
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=group.rank, world_size=group.size)
    contenders, processors = {}, len(os.sched_getaffinity(0))
    for kind, make in ((_SHARED, unisono.empty), (_PRIVATE, torch.empty)):
        tensors = make(cell.elements), make(cell.elements // group.size)
        call, fill = _ours(cell.name, *tensors), _filler(cell.call, *tensors)
        for lanes in cell.lanes:
            if lanes * (group.size - 1) > max(processors, group.size - 1):
                continue
            contenders[f"{kind} {lanes}"] = Contender(_setter(group, lanes), fill, call)
    if theirs := _gloo(cell.name, *tensors):
        contenders[GLOO] = Contender(lambda: None, fill, theirs)
    return in_turns(contenders, meet, cell)


def _filler(call: str, *tensors: torch.Tensor) -> Callable[[], object]:
    if call.endswith("+"):
        return lambda: [tensor.fill_(1.0) for tensor in tensors]
    arrays = [tensor.numpy() for tensor in tensors]
    return lambda: [array.__setitem__(..., 1.0) for array in arrays]


def _setter(group: unisono.Group, lanes: int) -> Callable[[], object]:
    def ready() -> None:
        if (group.host.config.lanes, group.host.config.lane_bytes) != (lanes, 0):
            group.host.config = group.host.config.replace(lanes=lanes, lane_bytes=0)
            forget_plans(group)

    return ready


def _ours(name: str, whole: torch.Tensor, block: torch.Tensor) -> Callable[[], object]:
    blocks = list(whole.chunk(unisono.get_world_size())) if unisono.get_rank() == 0 else None
    return {
        "all_reduce": lambda: unisono.all_reduce(whole),
        "broadcast": lambda: unisono.broadcast(whole, 0),
        "reduce": lambda: unisono.reduce(whole, 0),
        "scatter": lambda: unisono.scatter(block, blocks),
        "gather": lambda: unisono.gather(block, blocks),
        "all_gather": lambda: unisono.all_gather_single(whole, block),
        "reduce_scatter": lambda: unisono.reduce_scatter_single(block, whole),
    }[name]


def _gloo(name: str, whole: torch.Tensor, block: torch.Tensor) -> Callable[[], object] | None:
    blocks = list(whole.chunk(dist.get_world_size()))
    mine = blocks if dist.get_rank() == 0 else None
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "scatter": lambda: dist.scatter(block, mine),
        "gather": lambda: dist.gather(block, mine),
        "all_gather": lambda: dist.all_gather(blocks, block),
    }.get(name)


def _measure_mpi(cell: Cell, folder: str) -> Times:
    """On a rank of an MPI."""
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    whole, block = np.ones(cell.elements, np.float32), np.ones(cell.elements // size, np.float32)
    to_block = cell.name in ("scatter", "reduce_scatter")
    call = make_call(
        cell.name, *((whole, block) if to_block else (block, whole) if "gather" in cell.name else (whole, whole))
    )
    meet = Rendezvous(Path(folder, f"mpi-{cell.call}-{cell.nbytes}"), rank, size)
    fill = _filler(cell.call, torch.from_numpy(whole), torch.from_numpy(block))
    return in_turns({INTEL_MPI: Contender(lambda: None, fill, call)}, meet, cell)


def _copies() -> str:
    """How fast threads of one process copy, in words."""
    source, target, said = torch.ones(64 << 20), torch.zeros(64 << 20), []
    for threads in (1, 2, 4, 8, 16):
        if threads > torch.get_num_threads() * 2:
            break
        torch.set_num_threads(threads)
        times = []
        for _ in range(4):
            begin = time.perf_counter()
            target.copy_(source)
            times.append(time.perf_counter() - begin)
        said.append(f"{threads}: {(256 << 20) / min(times) / 1e9:.1f}")
    return ", ".join(said)


def _cells(calls: str, sizes: str, lanes: tuple[int, ...], seconds: float, least_idle: float) -> Iterator[Cell]:
    for call in calls.split(","):
        for size in sizes.split(","):
            yield Cell(call, parse_bytes(size), lanes, seconds, least_idle)


def _rows(ranks: int, cells: Sequence[Cell], lanes: tuple[int, ...], end: float) -> Iterator[str]:
    """The lines of a table, each as soon as it is known."""
    names = [*(f"{kind} {k}" for kind in (_SHARED, _PRIVATE) for k in lanes), GLOO, INTEL_MPI]
    yield from (
        "",
        f"## {ranks} ranks",
        "",
        f"| call | size | {' | '.join(names)} |",
        "| --- " * (len(names) + 2) + "|",
    )
    with ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory())
        world = ends.enter_context(unisono.world(ranks, timeout_s=300))
        job, launch = None, find(INTEL_MPI, ranks)
        if not isinstance(launch, str):
            try:
                job = MpiJob(launch, ranks)
                ends.callback(job.close)
            except PeerFailed as error:
                yield f"{INTEL_MPI}: {error}"
        for cell in cells:
            if time.monotonic() > end:
                yield "\nthe time is over"
                return
            times = slowest_rank(world.run(_measure, cell, folder))
            if job:
                try:
                    times |= slowest_rank(job.run(_measure_mpi, cell._replace(seconds=cell.seconds / 4), folder))
                except (PeerFailed, WaitTimeout) as error:
                    yield f"\n{INTEL_MPI}: {error}\n"
                    job = None
            said = [
                f"{median(times[name]) * 1e6:,.0f} ({min(times[name]) * 1e6:,.0f})" if times.get(name) else ""
                for name in names
            ]
            yield f"| {cell.call} | {format_bytes(cell.nbytes)} | {' | '.join(said)} |"


def main(
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "2",
    lanes: Annotated[str, typer.Option(help="Numbers of lanes of a rank.")] = "1,2",
    sizes: Annotated[str, typer.Option(help="Sizes of the vector.")] = "1MiB,4MiB,16MiB,64MiB",
    calls: Annotated[str, typer.Option(help="Which.")] = "all_reduce,broadcast,reduce,scatter,gather,all_gather",
    least_idle: Annotated[float, typer.Option(help="Wait until this share of the processors is idle.")] = 0.0,
    cell_s: Annotated[float, typer.Option(help="Seconds of each cell.")] = 1.0,
    seconds: Annotated[float, typer.Option(help="Seconds of the whole.")] = 240.0,
    output: Output = None,
) -> None:
    """Print a table for each number of ranks, row by row."""
    begin, path = time.monotonic(), output and report_path(output)
    lines = list[str]()

    def say(*more: str) -> None:
        print(*more, sep="\n", flush=True)
        lines.extend(more)
        if path:
            path.write_text("\n".join(lines) + "\n")

    say(*head("Lanes", describe(), f"GB/s that threads of one process copy: {unisono.run(_copies, 1)[0]}."))
    worlds = [int(text) for text in ranks.split(",")]
    asked = tuple(int(text) for text in lanes.split(","))
    for number, size in enumerate(worlds):
        end = begin + seconds * (number + 1) / len(worlds)
        for line in _rows(size, list(_cells(calls, sizes, asked, cell_s, least_idle)), asked, end):
            say(line)


if __name__ == "__main__":
    typer.run(main)
