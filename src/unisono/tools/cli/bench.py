"""`unisono bench`: how much faster than Gloo this machine makes calls with unisono."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated, NamedTuple

import psutil
import torch
import typer
from rich.table import Table

import unisono

from ...base.errors import ArgumentError
from ...base.linux import model as processor
from ...base.linux import processors
from ...base.units import format_bytes, format_seconds, parse_bytes, plural
from ...schedule import Hosts
from .shared.costs_over_hosts import known_hosts
from .shared.printing import at_work, compile_first, console, date, plain_table
from .shared.target import find_target, ranks_of
from .shared.timed_calls import LIBRARIES, Compared, Trial, compare, slowest

_TURNS = 5  # the number of turns of each library with each size
_TIMEOUT_S = 600.0
_LOOK_S, _BUSY = 0.4, 0.25
"""How long to look at the load before, and how many processors other programs must use to be mentioned."""


class _Cell(NamedTuple):
    """A call on a vector, by each of LIBRARIES."""

    call: str
    size: str
    found: Sequence[Compared]

    @property
    def ratio(self) -> float:
        """How much faster than Gloo."""
        ours, gloo = (median(one.times) for one in self.found)
        return gloo / ours


def bench(
    name: Annotated[str, typer.Argument(help="all_reduce.ring, or path/to/file.xml. Default: what calls choose.")] = "",
    *,
    ranks: Annotated[int, typer.Option(help="Number of ranks; 0: one per processor, but 2 to 4.")] = 0,
    hosts: Annotated[str, typer.Option(help="Hosts to simulate on this machine: 2x2, or 3+1.")] = "",
    sizes: Annotated[str, typer.Option(help="Bytes of each rank's tensor, comma-separated.")] = "8,64KiB,1MiB,16MiB",
    seconds: Annotated[float, typer.Option(min=0.0, help="Time to measure, without the start.")] = 10.0,
) -> None:
    """Compare all_reduce, or an algorithm, with Gloo on this machine, and check every result.

    It measures for ten seconds by default, after some seconds to start. Beside other programs it takes longer, and the
    result says so. Each size is measured at least once. With --hosts: all_reduce over several hosts, and other calls on
    the largest size. The hosts are processes that share no memory, and send over loopback.
    """
    names = {_nbytes(text): format_bytes(_nbytes(text), like=text) for text in sizes.split(",")}
    places, count = known_hosts(hosts, ranks or None, ranks_of(name, max(2, min(4, processors()))))
    if count < 2:
        raise ArgumentError(f"got {count} ranks, which have nothing to sum. Give --ranks 2 or more.")
    kind = find_target(name, count).algorithm.collective if name else ""
    if kind in ("scan", "exscan"):
        raise ArgumentError(f"Gloo has no {kind} to compare with. Name another collective.")
    busy = psutil.cpu_percent(_LOOK_S) / 100 * (os.cpu_count() or 1)
    cells = _measure(places or Hosts.one(count), names, seconds, kind, name)
    out = console()
    where = f" on {plural(len(places.members), 'host')} ({places.text})" if places else ""
    out.print(f"float32 on {count} ranks{where} · {processor()}, {processors()} processors")
    out.print(f"unisono {unisono.__version__}, torch {torch.__version__} · {date()}")
    if places:
        out.print("These hosts are processes that share no memory, and speak over loopback.")
    out.print()
    out.print(_table(cells))
    out.print(f"\n{_summary(cells)}")
    if busy > max(_BUSY, processors() - count):
        out.print(f"[bold red]But other programs used {busy:.1f} processors when it began, and slow it down.[/]")
    calls = [len(one.times) for cell in cells for one in cell.found]
    out.print(f"Medians of {min(calls)} to {max(calls)} calls each, of the slowest rank; the libraries take turns.")
    if count > processors():
        out.print(f"{count} ranks share {processors()} processors, so calls wait until all are scheduled.")
    if wrong := sum(one.wrong for cell in cells for one in cell.found):
        out.print(f"[bold red]The benchmark has failed: {wrong} elements of the results differ from Gloo's.[/]")
        raise typer.Exit(1)
    out.print("Every element of every result was the same as Gloo's.")


def calls_on(hosts: Hosts, sizes: Sequence[int]) -> list[tuple[str, int]]:
    """The calls to measure: all_reduce of all sizes and, on several hosts, other calls of the last size."""
    others = ("broadcast", "all_gather", "reduce_scatter", "all_to_all") if hosts.spans else ()
    return [*(("all_reduce", nbytes) for nbytes in sizes), *((name, sizes[-1]) for name in others)]


def _nbytes(text: str) -> int:
    nbytes = parse_bytes(text)
    if nbytes < 4 or nbytes % 4:
        raise ArgumentError(f"--sizes: got {text}, but a float32 has 4 bytes. Give multiples of 4, such as 8 or 64KiB.")
    return nbytes


def _measure(hosts: Hosts, names: Mapping[int, str], seconds: float, kind: str, algorithm: str) -> list[_Cell]:
    """names: bytes -> the size in words. kind, algorithm: the only collective to measure, and its algorithm, or ""."""
    calls, cells = calls_on(hosts, [*names]), list[_Cell]()
    if kind:
        calls = [(kind, nbytes) for nbytes in names]
    compile_first()
    with (
        at_work(f"starting {hosts.ranks} ranks") as status,
        tempfile.TemporaryDirectory() as folder,
        unisono.world(hosts=hosts, timeout_s=_TIMEOUT_S) as world,
    ):
        for call, nbytes in calls:
            status.update(f"{call} of {names[nbytes]}")
            ours, gloo = LIBRARIES
            trials = [Trial(call, nbytes, algorithm or None, ours), Trial(call, nbytes, library=gloo)]
            found = slowest(world.run(compare, trials, _TURNS, seconds / len(calls), folder))
            cells.append(_Cell(call, names[nbytes], found))
    return cells


def _table(cells: Sequence[_Cell]) -> Table:
    table = plain_table("call")
    for column in ("size", *LIBRARIES):
        table.add_column(column, justify="right")
    table.add_column("unisono is")
    for cell in cells:
        times = (format_seconds(median(one.times)) for one in cell.found)
        table.add_row(cell.call, cell.size, *times, f"[bold]{ratio_text(cell.ratio)}[/]")
    return table


def _summary(cells: Sequence[_Cell]) -> str:
    best, worst = (of(cells, key=lambda cell: cell.ratio) for of in (max, min))
    said = f"[bold]Best: {ratio_text(best.ratio)}, {best.call} of {best.size}."
    return said + (f" Worst: {ratio_text(worst.ratio)}, {worst.call} of {worst.size}.[/]" if worst != best else "[/]")


def ratio_text(ratio: float) -> str:
    """`17x faster than Gloo`, `1.5x slower than Gloo`, or, within 10 %, `about as fast as Gloo`."""
    more = max(ratio, 1 / ratio)
    if more < 1.1:
        return "about as fast as Gloo"
    return f"{more:.{0 if more >= 9.95 else 1}f}x {'faster' if ratio > 1 else 'slower'} than Gloo"
