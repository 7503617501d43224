"""Ranks that are not alone, or not in step: our backend beside Gloo, with and without processes that compute.

python -m benchmarks.busy calls     all_reduce and training steps on two ranks (`make bench-busy`)
python -m benchmarks.busy late      ranks of which one is late (`make bench-late`)
python -m benchmarks.busy serving   steps of a server that decodes (`make bench-serving`)

A hog is a process that computes all the time, in the session of the ranks: Linux may share the processors among
sessions first, and then hogs of another session take less. Contenders take turns in the same processes. The slowest
rank's time counts.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from statistics import mean, median, quantiles
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

from unisono.base.units import format_bytes, format_seconds, parse_bytes
from unisono.schedule import Hosts

from .reports import GLOO, OURS, Output, describe, hand_in, head, ours_beside_gloo, p99, table
from .torch_backend.ranks import LARGE, Groups, make_call, make_trainer, two_backends
from .turns import Times, slowest_rank, take_turns

STEPS = (LARGE, "fully_shard")
"""The cases that are training steps. The other cases are bytes of an `all_reduce`."""

LATE_S = (0.0, 0.5e-3, 3e-3, 20e-3)
NO_CALL = "no call"
_WIDTH, _TURN_S = 256, 0.04
_HOG = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"

app = typer.Typer()
Hogs = Annotated[str, typer.Option(help="Numbers of hogs.")]
Turns = Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")]


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


def _numbers(text: str) -> list[int]:
    return [parse_bytes(number) for number in text.split(",")]


def _titles(counts: list[int]) -> list[str]:
    return ["", *("1 hog" if count == 1 else f"{count} hogs" for count in counts)]


_CALLS = """\
Two processes, float32. A hog is a process that computes all the time, in the session of the ranks. `all_reduce` is
`dist.all_reduce` of so many bytes, in batches back to back. The other rows are training steps of
`python -m benchmarks.torch_backend`. A cell is ours / Gloo, and how many times as long Gloo takes."""


def _measure_calls(groups: Groups, case: int | str, neighbours: int, turns: int) -> Times:
    """Seconds per call on this rank, beside hogs. case: bytes of an all_reduce, or one of STEPS."""
    made = {
        who: make_trainer(case, group).step
        if isinstance(case, str)
        else make_call("all_reduce", torch.zeros(case // 4), group)[0]
        for who, group in groups.contenders.items()
    }
    with hogs(neighbours if groups.meet.rank == 0 else 0):
        return take_turns(made, groups.meet, turns, _TURN_S)


@app.command()
def calls(
    *, neighbours: Hogs = "0,1,2,4", sizes: str = "8,64KiB,4MiB", turns: Turns = 25, output: Output = None
) -> None:
    """Measure all_reduce and training steps on two ranks. A turn is a batch of calls, or of steps."""
    machine, counts = describe(), _numbers(neighbours)
    cases: dict[int | str, str] = {nbytes: f"`all_reduce`, {format_bytes(nbytes)}" for nbytes in _numbers(sizes)}
    cases |= {step: step for step in STEPS}
    with two_backends(2) as run:
        found = {key: slowest_rank(run(_measure_calls, *key, turns)) for key in product(cases, counts)}
    rows = {name: [found[case, count] for count in counts] for case, name in cases.items()}
    lines = head("Two ranks on a busy machine: our backend beside Gloo", machine, _CALLS)
    hand_in(lines + ours_beside_gloo(_titles(counts), rows), output)


_LATE = """\
float32, `dist.all_reduce`. Behind a barrier that belongs to no contender, one rank sleeps for so long, and then calls;
the others have called before. A figure is the time from its call until the last rank is out: ours / Gloo, and how many
times as long Gloo takes. Contenders take turns in the same processes. A hog is a process that computes all the time."""

_LATE_FIGURES = {
    "Medians": median, "90 % of the calls take at most": lambda times: quantiles(times, n=10)[-1], "Means": mean
}  # fmt: skip

Span = tuple[float, float]
"""When a rank made a call, and when it was out, in seconds on the clock of all processes."""


def _measure_late(groups: Groups, nbytes: int, late_s: float, neighbours: int, turns: int) -> dict[str, list[Span]]:
    """The calls of this rank, by contender. Ranks take turns in being late; a late rank sleeps."""
    tensor, meet = torch.zeros(nbytes // 4), groups.meet
    spans: dict[str, list[Span]] = {who: [] for who in groups.contenders}
    with hogs(neighbours if meet.rank == 0 else 0):
        for turn, (who, group) in product(range(turns), groups.contenders.items()):
            meet.barrier()
            if late_s and turn % meet.ranks == meet.rank:
                time.sleep(late_s)
            began = time.monotonic()
            dist.all_reduce(tensor, group=group)
            spans[who].append((began, time.monotonic()))
    return spans


def until_all_are_out(ranks: list[dict[str, list[Span]]]) -> Times:
    """Seconds from the last call of each turn until all ranks are out."""
    return {
        who: [
            max(out for _, out in turn) - max(began for began, _ in turn)
            for turn in zip(*(of[who] for of in ranks), strict=True)
        ]
        for who in ranks[0]
    }


@app.command()
def late(
    *, ranks: str = "2,4,8", sizes: str = "8,256KiB", neighbours: Hogs = "0,2", turns: Turns = 60, output: Output = None
) -> None:
    """Measure from the last rank's call until all ranks are out."""
    machine, counts, rows = describe(), _numbers(neighbours), dict[str, list[Times]]()
    for number in _numbers(ranks):
        with two_backends(number) as run:
            for nbytes, late_s in product(_numbers(sizes), LATE_S):
                when = f"one {format_seconds(late_s)} late" if late_s else "in step"
                for count in counts:
                    run(_measure_late, nbytes, late_s, count, 4)
                    times = until_all_are_out(run(_measure_late, nbytes, late_s, count, turns))
                    rows.setdefault(f"{number} ranks, {format_bytes(nbytes)}, {when}", []).append(times)
    lines = head("Ranks that do not arrive together: our backend beside Gloo", machine, _LATE)
    hand_in(lines + ours_beside_gloo(_titles(counts), rows, _LATE_FIGURES), output)


_SERVING = f"""\
Servers of several replicas agree before each step on how many tokens each has. A step is a product of two {_WIDTH} ×
{_WIDTH} matrices of float32 on one thread, an `all_reduce` of four int32 per rank, and such a product again. Contenders
take turns in the same processes; a turn is one step, behind two that are not timed and a barrier. {NO_CALL}: the step
without the `all_reduce`, in which ranks do not wait for each other. Hosts are processes of this machine that share no
memory and have connections over loopback: a real network adds its own time to both. A hog is a process that computes
all the time."""
_FIGURES = "Milliseconds of a step: median (99th percentile). The last column is how many times as long Gloo takes."


def _measure_serving(groups: Groups, neighbours: int, turns: int) -> Times:
    numbers = torch.zeros(4 * groups.meet.ranks, dtype=torch.int32)
    left, right = torch.rand(2, _WIDTH, _WIDTH)
    out = torch.empty(_WIDTH, _WIDTH)

    def step(group: Any) -> None:
        torch.mm(left, right, out=out)
        if group is not None:
            dist.all_reduce(numbers, group=group)
        torch.mm(left, right, out=out)

    steps = {name: partial(step, group) for name, group in {**groups.contenders, NO_CALL: None}.items()}
    with hogs(neighbours if groups.meet.rank == 0 else 0):
        return take_turns(steps, groups.meet, turns, 0.0)


def _serving_row(where: str, count: int, times: Mapping[str, list[float]]) -> list[str]:
    cells = [f"{median(times[name]) * 1e3:.2f} ({p99(times[name]) * 1e3:.2f})" for name in (OURS, GLOO, NO_CALL)]
    ratio, late_ratio = (figure(times[GLOO]) / figure(times[OURS]) for figure in (median, p99))
    return [where, f"{count}", *cells, f"{ratio:.2f} ({late_ratio:.2f})"]


@app.command()
def serving(
    *, shapes: str = "1x2,1x4,2x1,2x2", neighbours: Hogs = "0,2", turns: Turns = 400, output: Output = None
) -> None:
    """Measure steps of a server. shapes: hosts x ranks of each, on this machine."""
    machine, rows = describe(), list[list[str]]()
    for hosts in map(Hosts.parse, shapes.split(",")):
        several = len(hosts.members) > 1
        where = f"{hosts.ranks} ranks on {f'{len(hosts.members)} hosts' if several else 'one host'}"
        with two_backends(hosts.ranks, hosts.text if several else None) as run:
            for count in _numbers(neighbours):
                rows.append(_serving_row(where, count, slowest_rank(run(_measure_serving, count, turns))))
    lines = head("Steps of a server that decodes: our backend beside Gloo", machine, _SERVING, _FIGURES)
    hand_in(lines + table(["", "hogs", OURS, GLOO, NO_CALL, "Gloo / ours"], rows), output)


if __name__ == "__main__":
    app()
