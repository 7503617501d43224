"""Ranks that are not alone, or not in step: our backend beside Gloo, with and without processes that compute.

python -m benchmarks.busy calls     all_reduce and training steps on two ranks
python -m benchmarks.busy late      ranks of which one is late, beside three MPIs, too
python -m benchmarks.busy serving   steps of a server that decodes

A hog is a process that computes all the time, in the session of the ranks: Linux may share the processors among
sessions first, and then hogs of another session take less. Contenders take turns in the same processes. The slowest
rank's time counts.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import cycle, product
from statistics import median, quantiles
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

from unisono.base.units import format_bytes, format_seconds, parse_bytes
from unisono.schedule import Hosts

from .mpi import WHEELS, start_jobs
from .mpi import make_call as make_mpi_call
from .mpi import meet as mpi_meet
from .reports import FUTEX, GLOO, OURS, Output, describe, hand_in, head, in_us, ours_beside_gloo, p99, table
from .torch_backend.ranks import LARGE, Groups, make_call, make_trainer, two_backends
from .turns import Rendezvous, Times, slowest_rank, take_turns

STEPS = (LARGE, "fully_shard")
"""The cases that are training steps. The other cases are bytes of an `all_reduce`."""

NO_CALL = "no call"
_WIDTH, _TURN_S, _UNTIMED = 256, 0.04, 4
_HOG = """
import os
os.sched_setaffinity(0, range(os.cpu_count()))  # the ranks of an MPI may be pinned
parent = os.getppid()
print(flush=True)
while os.getppid() == parent: pass
"""

app = typer.Typer()
Hogs = Annotated[str, typer.Option(help="Numbers of hogs.")]
Turns = Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")]


@contextlib.contextmanager
def hogs(count: int) -> Iterator[None]:
    """Processes that compute, for the time of a `with` block."""
    running = [subprocess.Popen([sys.executable, "-c", _HOG], stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for hog in running:
            next(iter(hog.stdout or ()))  # from now on it computes
        yield
    finally:
        for hog in running:
            hog.kill()
            hog.communicate()


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
float32, `dist.all_reduce`, and `Allreduce` of mpi4py. Behind a barrier that belongs to no contender, one rank sleeps,
computes, or sweeps its caches (it writes 64 MiB, a part after the other) for so long, and then calls; the others have
called before. A figure is the time from its call until the last rank is out, in µs: the median / what 90 % / what 99 %
of the calls take at most. Ranks take turns in being late, and contenders one after the other in each row, each with all
its calls. Ranks of an MPI do not sleep while they wait. The bare futex is the bound of those that do: two processes,
each kept on a processor of its own, of which one sleeps in a futex until the other one wakes it, both by Python. A hog
is a process that computes all the time."""

LATE = ("in step", 0.0), *product(("sleeping", "computing"), (0.5e-3, 3e-3, 20e-3)), ("sweeping", 20e-3)
"""How the late rank passes its time, and for how many seconds."""

Span = tuple[float, float]
"""When a rank made a call, and when it was out, in seconds on the clock of all processes."""


def _measure_late(
    call: Callable[[], object], meet: Rendezvous, how: str, late_s: float, neighbours: int, turns: int
) -> list[Span]:
    """The calls of this rank. Ranks take turns in being late."""
    spans, parts = list[Span](), cycle(torch.zeros(64, 1 << 18))  # of 1 MiB
    ways: dict[str, Callable[[], object]] = {
        "sleeping": partial(time.sleep, late_s), "computing": int, "sweeping": lambda: next(parts).add_(1)
    }  # fmt: skip
    with hogs(neighbours if meet.rank == 0 else 0):
        for turn in range(-_UNTIMED, turns):
            meet.barrier()
            until = time.monotonic() + late_s * (turn % meet.ranks == meet.rank)
            while time.monotonic() < until:
                ways[how]()
            began = time.monotonic()
            call()
            if turn >= 0:
                spans.append((began, time.monotonic()))
    return spans


def _late_backend(groups: Groups, who: str, nbytes: int, *rest: Any) -> list[Span]:
    tensor = torch.zeros(nbytes // 4)
    return _measure_late(partial(dist.all_reduce, tensor, group=groups.contenders[who]), groups.meet, *rest)


def _late_mpi(nbytes: int, *rest: Any) -> list[Span]:
    x = torch.zeros(nbytes // 4).numpy()
    return _measure_late(make_mpi_call("all_reduce", x, x), mpi_meet(), *rest)


def _late_futex(groups: Groups, *rest: Any) -> list[Span]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(allowed)[groups.meet.rank % len(allowed)]})
    try:
        return _measure_late(groups.futex.barrier, groups.meet, *rest)
    finally:
        os.sched_setaffinity(0, allowed)


def until_all_are_out(ranks: list[list[Span]]) -> list[float]:
    """Seconds from the last call of each turn until all ranks are out."""
    return [max(out for _, out in turn) - max(began for began, _ in turn) for turn in zip(*ranks, strict=True)]


@app.command()
def late(
    *,
    ranks: str = "2,4,8",
    sizes: str = "8,256KiB",
    neighbours: Hogs = "0,2",
    turns: Turns = 160,
    output: Output = None,
) -> None:
    """Measure from the last rank's call until all ranks are out. turns: of all ranks together."""
    machine, counts, notes = describe(), _numbers(neighbours), list[str]()
    names, rows = [OURS, GLOO, *WHEELS, FUTEX], dict[int, list[list[str]]]()
    for number in _numbers(ranks):
        with contextlib.ExitStack() as ends:
            run, jobs = ends.enter_context(two_backends(number)), start_jobs(number, ends, notes)
            for nbytes, (how, late_s), count in product(_numbers(sizes), LATE, counts):
                rest = how, late_s, count, turns // number
                found = {who: run(_late_backend, who, nbytes, *rest) for who in (OURS, GLOO)}
                found |= {name: job.run(_late_mpi, nbytes, *rest) for name, job in jobs.items()}
                if number == 2 and nbytes == 8:
                    found[FUTEX] = run(_late_futex, *rest)
                where = f"{number} ranks, {format_bytes(nbytes)}, "
                where += f"one {format_seconds(late_s)} late, {how}" if late_s else how
                cells = [_spread(found[name]) if name in found else "" for name in names]
                rows.setdefault(count, []).append([where, *cells])
    lines = head("Ranks that do not arrive together: our backend beside others", machine, _LATE, *notes)
    for title, count in zip(_titles(counts)[1:], counts, strict=True):
        lines += ["", f"## {title}", *table(["", *names], rows[count])]
    hand_in(lines, output)


def _spread(ranks: list[list[Span]]) -> str:
    of_100 = quantiles(until_all_are_out(ranks), n=100, method="inclusive")
    return " / ".join(in_us(of_100[most - 1]) for most in (50, 90, 99))


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
