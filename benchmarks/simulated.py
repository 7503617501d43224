"""What `unisono simulate` says beside what calls take: on this host, and on hosts in network namespaces of it.

    sudo python -m benchmarks.simulated

Some calls calibrate each system: between hosts those of 8 bytes (what a call, a round and a message take), on one host
four of the algorithms, as in `unisono tune`. All else is predicted. The least time of some calls counts, each that of
its slowest rank.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tests.support.cluster import Cluster, why_not

import unisono
from unisono.base.link import Link
from unisono.base.units import format_bytes, format_seconds, parse_bytes
from unisono.schedule import Hosts
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.simulate import Hardware, Ready, Timed, calibrate, messages, network, price, price_here, routed

from .machine import LOAD, describe, load, vendor_path

__all__ = ["bench_simulated"]

_FEW, _CALLS = 8, 30
_NAMES = ("one_shot", "recursive_doubling", "two_shot", "circulant", "ring", "tree", "linear_pipeline", "naive")
_KNOWN = ("one_shot", "two_shot", "tree", "linear_pipeline")
_GOODPUT = 0.94
"""Of what a cable carries, what is left without the headers of Ethernet, IP and TCP."""


def _times(cells: Sequence[tuple[str, int]]) -> list[list[float]]:
    """For each algorithm and size this rank's times."""
    torch.set_num_threads(1)
    found = []
    for name, nbytes in cells:
        tensor, mine = torch.ones(nbytes // 4), []
        for _ in range(_CALLS):
            unisono.barrier()
            began = time.perf_counter()
            unisono.all_reduce(tensor, algorithm=name)
            mine.append(time.perf_counter() - began)
        found.append(mine[1:])
    return found


def _section(title: str, hosts: Hosts, sizes: Sequence[int], run: Callable[..., list[Any]], rate: float) -> list[str]:
    """The table of one system. rate: of the link between hosts; 0: all ranks are on one, and it is measured."""
    cells = [(name, size) for name in _NAMES for size in sizes]
    ranks = run(_times, cells)
    least = {
        cell: min(max(of_call) for of_call in zip(*of_ranks, strict=True))
        for cell, of_ranks in zip(cells, zip(*ranks, strict=True), strict=True)
    }
    one, other = (least[name, _FEW] for name in ("one_shot", "recursive_doubling"))
    latency = other / math.log2(hosts.ranks)  # a round of one message; each of the p - 2 more that a rank sends at once
    hardware = Hardware(Link(latency, rate or 1.0), message_share=max(one / latency - 1, 0.0) / max(hosts.ranks - 2, 1))
    where, cut = network("two-levels", hosts, hardware), unisono.Config().segment_bytes
    known = [Timed(CATALOGUE[f"all_reduce.{name}"], size, least[name, size]) for name, size in cells if name in _KNOWN]
    costs = None if rate else calibrate(known, hosts.ranks, cut)
    lines = [
        "",
        f"## {title}",
        "",
        "| all_reduce | vector | predicted | measured | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (name, size), took in least.items():
        algorithm = CATALOGUE[f"all_reduce.{name}"]
        if costs:
            says = price_here(algorithm, hosts.ranks, size, costs, cut).seconds
        else:
            table = messages(algorithm.schedule(hosts.ranks))
            says = price(Ready(name, routed(table, where)), where, size).seconds
        cells_ = name, format_bytes(size), format_seconds(says), format_seconds(took), f"{says / took:.2f}"
        lines.append(f"| {' | '.join(cells_)} |")
    return lines


def bench_simulated(
    *,
    ranks: Annotated[int, typer.Option(help="Of one host.")] = 2,
    shape: Annotated[str, typer.Option(help="Hosts in network namespaces; empty for none.")] = "4x1",
    gbit: Annotated[float, typer.Option(help="Of each of their links, both ways.")] = 1.0,
    sizes: Annotated[str, typer.Option(help="Bytes of the vector, ascending, the first 8.")] = "8,64KiB,1MiB,16MiB",
    output: Annotated[str, typer.Option(help="Write the report there, too.")] = "",
) -> None:
    """Print a table for one host, and one for several."""
    vectors = [parse_bytes(size) for size in sizes.split(",")]
    report = ["# Simulated and measured", "", *(f"- {name}: {value}" for name, value in describe().items())]
    report += [f"- {LOAD}: {load()}"]
    with unisono.world(ranks, timeout_s=300) as world:
        report += _section(f"{ranks} ranks, one host", Hosts.one(ranks), vectors, world.run, 0.0)
    print("\n".join(report), flush=True)
    if shape and not why_not():
        with closing(Cluster(Hosts.parse(shape))) as cluster:
            cluster.rate(f"{gbit:g}gbit")
            rate = gbit * 1e9 / 8 * _GOODPUT
            more = _section(f"{shape}, {gbit:g} Gbit/s", cluster.hosts, vectors, cluster.run, rate)
        report += more
        print("\n".join(more), flush=True)
    if output:
        vendor_path(Path(output)).write_text("\n".join(report) + "\n")


if __name__ == "__main__":
    typer.run(bench_simulated)
