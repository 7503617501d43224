"""Two ranks on a machine that is busy with something else: our backend beside Gloo, with 0, 1, 2 and 4 hogs.

    python -m benchmarks.busy

A hog is a process that computes all the time, in the session of the ranks: Linux may share the processors among
sessions first, and then hogs of another session take less. Contenders take turns in the same two processes; a turn is a
batch of calls, or of training steps, behind one that is not timed and brings the ranks together. The slower rank's time
counts.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated

import torch
import typer

from unisono.base.units import format_bytes, parse_bytes

from .reports import Output, describe, hand_in, head, ours_beside_gloo
from .torch_backend.ranks import LARGE, Groups, make_call, make_trainer, two_backends
from .turns import Times, slowest_rank, take_turns

STEPS = (LARGE, "fully_shard")
"""The cases that are training steps. The other cases are bytes of an `all_reduce`."""

_TURN_S = 0.04
_HOG = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"

_HOW = """\
Two processes, float32. A hog is a process that computes all the time, in the session of the ranks. `all_reduce` is
`dist.all_reduce` of so many bytes, in batches back to back. The other rows are training steps of
`python -m benchmarks.torch_backend`. A cell is ours / Gloo, and how many times as long Gloo takes."""


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


def measure(groups: Groups, case: int | str, neighbours: int, turns: int) -> Times:
    """Seconds per call on this rank, beside hogs. case: bytes of an all_reduce, or one of STEPS."""
    calls = {
        who: make_trainer(case, group).step
        if isinstance(case, str)
        else make_call("all_reduce", torch.zeros(case // 4), group)[0]
        for who, group in groups.contenders.items()
    }
    with hogs(neighbours if groups.meet.rank == 0 else 0):
        return take_turns(calls, groups.meet, turns, _TURN_S)


def busy_markdown(machine: Mapping[str, str], results: Mapping[tuple[int | str, int], Times]) -> list[str]:
    """The report. results: by case and number of hogs."""
    numbers = list(dict.fromkeys(count for _, count in results))
    rows = {
        case if isinstance(case, str) else f"`all_reduce`, {format_bytes(case)}": [results[case, n] for n in numbers]
        for case, _ in results
    }
    titles = ["", *("1 hog" if count == 1 else f"{count} hogs" for count in numbers)]
    lines = head("Two ranks on a busy machine: our backend beside Gloo", machine, _HOW)
    return lines + ours_beside_gloo(titles, rows)


def bench_busy(
    *,
    neighbours: Annotated[str, typer.Option(help="Numbers of hogs.")] = "0,1,2,4",
    sizes: Annotated[str, typer.Option(help="Bytes of the all_reduce.")] = "8,64KiB,4MiB",
    turns: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 25,
    output: Output = None,
) -> None:
    """Measure all_reduce and a training step on two ranks, beside Gloo, with and without processes that compute."""
    cases: list[int | str] = [*map(parse_bytes, sizes.split(",")), *STEPS]
    machine, results = describe(), dict[tuple[int | str, int], Times]()
    with two_backends(2) as run:
        for count in map(int, neighbours.split(",")):
            for case in cases:
                results[case, count] = slowest_rank(run(measure, case, count, turns))
    hand_in(busy_markdown(machine, results), output)


if __name__ == "__main__":
    typer.run(bench_busy)
