"""A call whose last rank comes late: how long after its arrival are all ranks out; and what it costs to wait.

    python -m benchmarks.late

Contenders take turns in the same processes: our all_reduce, the same with ranks that only nap, as where the system has
no membarrier, and Gloo's. Before each call the ranks meet in a barrier of the benchmark's own; then the last one
computes for so long. The last part has a rank wait for many seconds, and counts the processor time of that.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Annotated, Any, NamedTuple

import torch
import torch.distributed as dist
import typer

import unisono
from unisono.base.units import format_bytes, format_seconds, parse_bytes
from unisono.engine.compile.program import StateWord

from .reports import GLOO, OURS, Output, describe, hand_in, head, table
from .torch_backend.calls import Groups

NAPPING = f"{OURS}, napping"


class Turn(NamedTuple):
    """When a rank entered a call and when it left, in seconds of the clock that all processes share."""

    entered: float
    left: float


def _calls(folder: str, tensor: torch.Tensor) -> dict[str, Callable[[], Any]]:
    words, gloo = unisono.init().host.words, Groups.get(folder).contenders[GLOO]
    sleeps = words[StateWord.SLEEPS]

    def ours(can_sleep: int) -> None:
        words[StateWord.SLEEPS] = can_sleep
        unisono.all_reduce(tensor)
        words[StateWord.SLEEPS] = sleeps

    return {OURS: lambda: ours(sleeps), NAPPING: lambda: ours(0), GLOO: lambda: dist.all_reduce(tensor, group=gloo)}


def _turns(folder: str, nbytes: int, late_s: float, turns: int) -> dict[str, list[Turn]]:
    """This rank's turns."""
    group, meet = unisono.init(), Groups.get(folder).meet
    calls = _calls(folder, torch.zeros(nbytes // 4))
    found: dict[str, list[Turn]] = {who: [] for who in calls}
    draw, order = random.Random(0), list(calls)  # noqa: S311  the same order on all ranks
    for _ in range(turns + 1):
        draw.shuffle(order)  # none always follows the same one, and finds its caches and threads
        for who in order:
            meet.barrier()
            until = time.monotonic() + late_s
            while group.rank == group.size - 1 and time.monotonic() < until:
                pass
            entered = time.monotonic()
            calls[who]()
            found[who].append(Turn(entered, time.monotonic()))
    return {who: some[1:] for who, some in found.items()}


def _waiting(folder: str, who: str, late_s: float) -> float:
    """The share of a processor that this rank takes while it waits for the last one."""
    group, call = unisono.init(), _calls(folder, torch.zeros(2))[who]
    Groups.get(folder).meet.barrier()
    if group.rank == group.size - 1:
        time.sleep(late_s)  # the wait of the others is what is measured
    spent, began = time.process_time(), time.monotonic()
    call()
    return (time.process_time() - spent) / (time.monotonic() - began)


def bench_late(
    *,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "2,4",
    sizes: Annotated[str, typer.Option(help="Bytes of the tensor.")] = "8,1MiB",
    late_ms: Annotated[str, typer.Option(help="How late the last rank comes.")] = "0,0.5,3,20",
    turns: Annotated[int, typer.Option(min=2, help="How often each contender has its turn.")] = 100,
    wait_s: Annotated[float, typer.Option(help="How long a rank waits whose processor time counts.")] = 10.0,
    output: Output = None,
) -> None:
    """Print two tables: medians, and in brackets the 90th percentile; and shares of a processor."""
    machine, rows, shares = describe(), list[list[str]](), list[list[str]]()
    for size in map(int, ranks.split(",")):
        with tempfile.TemporaryDirectory() as folder, unisono.world(size, timeout_s=600) as world:
            for nbytes in map(parse_bytes, sizes.split(",")):
                for late_s in (float(each) / 1000 for each in late_ms.split(",")):
                    by_rank = world.run(_turns, folder, nbytes, late_s, turns)
                    rows.append([f"{size} ranks, {format_bytes(nbytes)}, {format_seconds(late_s)} late"])
                    for who in by_rank[0]:
                        together = zip(*(found[who] for found in by_rank), strict=True)
                        took = [max(t.left for t in turn) - max(t.entered for t in turn) for turn in together]
                        rows[-1].append(f"{format_seconds(median(took))} ({format_seconds(quantiles(took, n=10)[-1])})")
            first = [world.run(_waiting, folder, who, wait_s)[0] for who in (OURS, NAPPING, GLOO)]
            shares.append([f"{size} ranks, {format_seconds(wait_s)}", *(f"{100 * share:.1f} %" for share in first)])
    lines = head("A rank that comes late", machine)
    for title, found in (("all_reduce, all out after", rows), ("processor time of a rank that waits", shares)):
        lines += table([title, OURS, NAPPING, GLOO], found)
    hand_in(lines, output)


if __name__ == "__main__":
    typer.run(bench_late)
