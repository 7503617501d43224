"""Calls of torch.distributed and training steps, on our backend and on Gloo: `python -m benchmarks.torch_backend`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

import unisono
from unisono.base.units import format_seconds, parse_bytes

from ..machine import LOAD, describe, load, report_path
from ..names import GLOO, OURS
from .calls import CALLS, measure_barrier, measure_calls, slowest_rank
from .report import Called, Trained, torch_markdown
from .steps import KINDS, measure_steps


def bench_torch(
    *,
    sizes: Annotated[str, typer.Option(help="Bytes of a rank's larger tensor, multiples of 8.")] = "8,64KiB,4MiB",
    turns: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 9,
    steps: Annotated[int, typer.Option(min=1, help="Training steps that are timed.")] = 30,
    output: Annotated[Path | None, typer.Option(help="Write Markdown here; {vendor} stands for amd, intel ...")] = None,
) -> None:
    """Measure torch.distributed on two ranks with our backend beside Gloo: every call, then training."""
    counts = [parse_bytes(size) for size in sizes.split(",")]
    machine = {**describe(), LOAD: load()}
    with tempfile.TemporaryDirectory() as folder, unisono.world(2, timeout_s=600) as world:
        machine["mode"] = f"a barrier takes {format_seconds(max(world.run(measure_barrier, folder)))}"
        calls = []
        for name in CALLS:
            for nbytes in counts if name != "barrier" else counts[:1]:
                seen = world.run(measure_calls, folder, name, nbytes, turns)
                times = slowest_rank([times for times, _ in seen])
                calls.append(Called(name, nbytes if name != "barrier" else None, times, all(same for _, same in seen)))
        training = []
        for kind in KINDS:
            trained = world.run(measure_steps, folder, kind, steps)
            same = all(losses[OURS] == losses[GLOO] for _, losses in trained)
            training.append(Trained(kind, slowest_rank([times for times, _ in trained]), trained[0][1], same))
    report = torch_markdown(machine, counts, calls, training)
    if output:
        output = report_path(output)
        output.write_text(report)
    else:
        print(report)
    if not (all(call.same for call in calls) and all(trained.same for trained in training)):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench_torch)
