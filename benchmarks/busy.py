"""Ranks that are not alone, or not in step: our backend beside Gloo, with and without processes that compute.

python -m benchmarks.busy calls     all_reduce and training steps on two ranks
python -m benchmarks.busy late      ranks of which one is late, beside three MPIs, too
python -m benchmarks.busy serving   steps of a server that decodes

A background process computes all the time, in the session of the ranks: Linux may share the processors among sessions
first, and then processes of another session take less. Contenders take turns in the same processes. The slowest
rank's time counts.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, product
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

from unisono.base.units import format_bytes, format_seconds, parse_bytes
from unisono.schedule import Hosts

from .mpi import make_call as make_mpi_call
from .mpi import meet as mpi_meet
from .mpi import start_jobs
from .runs import FUTEX, GLOO, OURS, TORCH, Output, begin, hand_in, of_times
from .torch_backend.ranks import LARGE, Groups, make_call, make_trainer, two_backends
from .turns import Rendezvous, Times, slowest_rank, take_turns

STEPS = (LARGE, "fully_shard")
"""The cases that are training steps. The other cases are bytes of an `all_reduce`."""

NO_CALL, _BACKGROUND = "no call", "background processes"
_WIDTH, _TURN_S, _UNTIMED = 256, 0.04, 4
_HOG = """
import os
os.sched_setaffinity(0, range(os.cpu_count()))  # the ranks of an MPI may be pinned
parent = os.getppid()
print(flush=True)
while os.getppid() == parent: pass
"""

app = typer.Typer()
Neighbours = Annotated[str, typer.Option(help="Numbers of background processes that compute.")]
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


_CALLS = """\
Two processes, float32. A background process computes all the time, in the session of the ranks. `all_reduce` is
`dist.all_reduce` of so many bytes, in batches back to back. The other rows are training steps of
`python -m benchmarks.torch_backend`."""


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
    *, neighbours: Neighbours = "0,1,2,4", sizes: str = "8,64KiB,4MiB", turns: Turns = 25, output: Output = None
) -> None:
    """Measure all_reduce and training steps on two ranks. A turn is a batch of calls, or of steps."""
    run = begin("Calls and training steps on two ranks of a busy machine", _CALLS, code=TORCH)
    cases: dict[int | str, str] = {nbytes: f"all_reduce of {format_bytes(nbytes)}" for nbytes in _numbers(sizes)}
    cases |= {step: step for step in STEPS}
    with two_backends(2) as on_ranks:
        found = {
            (cases[case], count): slowest_rank(on_ranks(_measure_calls, case, count, turns))
            for case, count in product(cases, _numbers(neighbours))
        }
    run.tables.append(of_times("calls and steps", ["call", _BACKGROUND], found))
    hand_in(run, output)


_LATE = """\
float32, `dist.all_reduce`, and `Allreduce` of mpi4py. Behind a barrier that belongs to no contender, one rank sleeps,
computes, or sweeps its caches (it writes 64 MiB, a part after the other) for so long, and then calls; the others have
called before. A figure is the time from its call until the last rank is out. Ranks take turns in being late, and
contenders one after the other in each row, each with all its calls. Ranks of an MPI do not sleep while they wait. The
bare futex is the bound of those that do: two processes, each kept on a processor of its own, of which one sleeps in a
futex until the other one wakes it, both by Python. A background process computes all the time."""

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
    neighbours: Neighbours = "0,2",
    turns: Turns = 160,
    output: Output = None,
) -> None:
    """Measure from the last rank's call until all ranks are out. turns: of all ranks together."""
    run, times = begin("Calls in which one rank is late", _LATE, code=TORCH), dict[tuple[int, int, str, int], Times]()
    for number in _numbers(ranks):
        with contextlib.ExitStack() as ends:
            on_ranks, jobs = ends.enter_context(two_backends(number)), start_jobs(number, ends, run.how)
            for nbytes, (how, late_s), count in product(_numbers(sizes), LATE, _numbers(neighbours)):
                rest = how, late_s, count, turns // number
                found = {who: on_ranks(_late_backend, who, nbytes, *rest) for who in (OURS, GLOO)}
                found |= {name: job.run(_late_mpi, nbytes, *rest) for name, job in jobs.items()}
                if number == 2 and nbytes == 8:
                    found[FUTEX] = on_ranks(_late_futex, *rest)
                late_rank = f"{format_seconds(late_s)} late, {how}" if late_s else how
                times[number, nbytes, late_rank, count] = {who: until_all_are_out(of) for who, of in found.items()}
    run.tables.append(of_times("calls", ["ranks", "bytes", "late rank", _BACKGROUND], times))
    hand_in(run, output)


_SERVING = f"""\
Servers of several replicas agree before each step on how many tokens each has. A step is a product of two {_WIDTH} ×
{_WIDTH} matrices of float32 on one thread, an `all_reduce` of four int32 per rank, and such a product again. Contenders
take turns in the same processes; a turn is one step, behind two that are not timed and a barrier. {NO_CALL}: the step
without the `all_reduce`, in which ranks do not wait for each other. Hosts are processes of this machine that share no
memory and have connections over loopback: a real network adds its own time to both. A background process computes all
the time."""


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


@app.command()
def serving(
    *, shapes: str = "1x2,1x4,2x1,2x2", neighbours: Neighbours = "0,2", turns: Turns = 400, output: Output = None
) -> None:
    """Measure steps of a server. shapes: hosts x ranks of each, on this machine."""
    run, times = begin("Steps of a server", _SERVING, code=TORCH), dict[tuple[str, int], Times]()
    for hosts in map(Hosts.parse, shapes.split(",")):
        several = len(hosts.members) > 1
        where = f"{hosts.ranks} on {f'{len(hosts.members)} hosts' if several else 'one host'}"
        with two_backends(hosts.ranks, hosts.text if several else None) as on_ranks:
            for count in _numbers(neighbours):
                times[where, count] = slowest_rank(on_ranks(_measure_serving, count, turns))
    run.tables.append(of_times("steps", ["ranks", _BACKGROUND], times))
    hand_in(run, output)


if __name__ == "__main__":
    app()
