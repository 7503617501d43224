"""Two ranks on a machine that is busy with something else: our backend beside Gloo, with 0, 1, 2 and 4 hogs.

    python -m benchmarks.busy

A hog is a process that computes all the time, in the session of the ranks: Linux may share the processors among
sessions first, and then hogs of another session take less. Contenders take turns in the same two processes; a turn is a
batch of calls, or of training steps, behind one that is not timed and brings the ranks together. The slower rank's time
counts.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from torch import nn

import unisono
from unisono.base.units import format_bytes, parse_bytes

from .machine import describe, report_path
from .names import GLOO, OURS
from .torch_backend.groups import Groups

STEPS = ("DistributedDataParallel", "fully_shard")
"""The cases that are training steps. The other cases are bytes of an `all_reduce`."""

Times = dict[str, list[float]]
"""Contender -> seconds per call, or step, one figure per turn."""

_WIDTH, _LAYERS, _BATCH, _BUCKET_MIB = 512, 16, 64, 4
_TURN_S, _MOST = 0.04, 1000
_HOG = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"

_HOW = f"""\
Two processes, float32. A hog is a process that computes all the time, in the session of the ranks. `all_reduce` is
`dist.all_reduce` of so many bytes, in batches back to back. The other rows are training steps, without an optimizer:
{_LAYERS} linear layers of {_WIDTH}, {_LAYERS * _WIDTH * _WIDTH * 4 >> 20} MiB of gradients, {_BATCH} rows per rank;
DistributedDataParallel with buckets of {_BUCKET_MIB} MiB, fully_shard with each layer for itself. A cell is ours /
Gloo, and how many times as long Gloo takes."""


@contextlib.contextmanager
def hogs(count: int) -> Iterator[None]:
    """Processes that compute, for the time of a `with` block."""
    running = [subprocess.Popen([sys.executable, "-c", _HOG]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in running:
            hog.kill()
            hog.wait()


def measure(folder: str, case: int | str, neighbours: int, turns: int) -> Times:
    """Seconds per call on this rank, beside hogs. case: bytes of an all_reduce, or one of STEPS."""
    groups = Groups.get(folder)
    with hogs(neighbours if unisono.get_rank() == 0 else 0):
        return _measure(groups, case, turns)


def _measure(groups: Groups, case: int | str, turns: int) -> Times:
    make: Callable[[Any], Callable[[], object]] = _stepper(case) if isinstance(case, str) else _reducer(case)
    made = {}
    for contender, group in groups.contenders.items():
        call = make(group)
        call()
        begin = time.perf_counter()
        for _ in range(3):
            call()
        count = int(3 * _TURN_S / (time.perf_counter() - begin))
        made[contender] = call, groups.meet.share(max(1, min(_MOST, count)))
    times: Times = {contender: [] for contender in made}
    for _ in range(turns):
        for contender, (call, count) in made.items():
            call()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            times[contender].append((time.perf_counter() - begin) / count)
    return times


def _reducer(nbytes: int) -> Callable[[Any], Callable[[], object]]:
    x = torch.zeros(nbytes // 4)
    return lambda group: lambda: dist.all_reduce(x, group=group)


def _stepper(kind: str) -> Callable[[Any], Callable[[], object]]:
    """Makes, for a group, the next step of training of a model of its own."""

    def make(group: Any) -> Callable[[], object]:
        model: nn.Module = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_LAYERS)))
        if kind == "fully_shard":
            from torch.distributed.device_mesh import DeviceMesh
            from torch.distributed.fsdp import fully_shard

            mesh = DeviceMesh.from_group(group, "cpu")
            for part in (*model.children(), model):
                fully_shard(part, mesh=mesh)
        else:
            model = nn.parallel.DistributedDataParallel(
                model, process_group=group, bucket_cap_mb=_BUCKET_MIB, gradient_as_bucket_view=True
            )
        rows = torch.randn(_BATCH, _WIDTH)

        def step() -> None:
            model.zero_grad()
            model(rows).square().mean().backward()

        return step

    return make


def busy_markdown(machine: dict[str, str], results: dict[tuple[int | str, int], Times]) -> str:
    """The report. results: by case and number of hogs."""
    numbers = list(dict.fromkeys(count for _, count in results))
    lines = ["# Two ranks on a busy machine: our backend beside Gloo", ""]
    lines += [f"- {name}: {f'`{value}`' if name == 'command' else value}" for name, value in machine.items()]
    lines += ["", _HOW]
    for title, figure in (("Medians", median), ("Least times", min)):
        heads = ["1 hog" if count == 1 else f"{count} hogs" for count in numbers]
        lines += ["", f"## {title}, in µs", "", _row(["", *heads]), _row(["---"] * (1 + len(numbers)))]
        for case in dict.fromkeys(case for case, _ in results):
            name = case if isinstance(case, str) else f"`all_reduce`, {format_bytes(case)}"
            cells = []
            for count in numbers:
                ours, theirs = (figure(results[case, count][who]) * 1e6 for who in (OURS, GLOO))
                cells.append(f"{_us(ours)} / {_us(theirs)} ({theirs / ours:.1f}×)")
            lines.append(_row([name, *cells]))
    return "\n".join(lines) + "\n"


def _us(figure: float) -> str:
    return f"{figure:,.{0 if figure >= 100 else 1}f}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def bench_busy(
    *,
    neighbours: Annotated[str, typer.Option(help="Numbers of hogs.")] = "0,1,2,4",
    sizes: Annotated[str, typer.Option(help="Bytes of the all_reduce.")] = "8,64KiB,4MiB",
    turns: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 25,
    output: Annotated[Path | None, typer.Option(help="Write Markdown here; {vendor} stands for amd, intel ...")] = None,
) -> None:
    """Measure all_reduce and a training step on two ranks, beside Gloo, with and without processes that compute."""
    cases: list[int | str] = [*map(parse_bytes, sizes.split(",")), *STEPS]
    machine = {**describe(), "load average of the minute before": f"{os.getloadavg()[0]:.1f}"}
    results: dict[tuple[int | str, int], Times] = {}
    with tempfile.TemporaryDirectory() as folder, unisono.world(2, timeout_s=600) as world:
        for count in map(int, neighbours.split(",")):
            for case in cases:
                ranks = world.run(measure, folder, case, count, turns)
                results[case, count] = {
                    who: [max(turn) for turn in zip(*(times[who] for times in ranks), strict=True)] for who in ranks[0]
                }
    report = busy_markdown(machine, results)
    if output:
        report_path(output).write_text(report)
    else:
        print(report)


if __name__ == "__main__":
    typer.run(bench_busy)
