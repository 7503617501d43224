"""`unisono simulate`: the cost of every algorithm on hosts that the user need not have."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ...base.config import Config
from ...base.errors import ArgumentError
from ...base.link import Link
from ...base.python import no_collections
from ...base.units import format_bytes, format_seconds, parse_bytes, plural
from ...schedule import Hosts
from ...schedule.exchange import file_algorithm
from ...schedule.simulate import (
    Candidate,
    Hardware,
    Network,
    Price,
    candidates,
    messages,
    price,
)
from .shared.printing import at_work, console, plain_table
from .shared.target import ranks_of

_LATE = re.compile(r"(?P<rank>\d+):(?P<time>.+)")
_NOTHING_S = 1e-12


def simulate(
    name: Annotated[
        str,
        typer.Argument(help="A collective, such as all_reduce, or one algorithm: all_reduce.ring, path/to/file.xml"),
    ],
    *,
    hosts: Annotated[
        str,
        typer.Option(
            help="Hosts of the ranks: 512x8, 3+1 or 2x2:round_robin. Default: 64x8, or one for each rank of a file."
        ),
    ] = "",
    nbytes: Annotated[str, typer.Option("--bytes", help="Size of the vector, such as 4096 or 1GiB.")] = "16MiB",
    link: Annotated[
        str, typer.Option(help="The network between hosts, such as 100Gbit,2us. Default: UNISONO_LINK.")
    ] = "",
    inside: Annotated[str, typer.Option(help="Rate and latency inside a host, such as 5GB,1us.")] = "",
    late_rank: Annotated[list[str] | None, typer.Option(help="A late rank and its delay: 17:1ms.")] = None,
    root: Annotated[int, typer.Option(help="The root rank, for collectives with a root.")] = 0,
) -> None:
    """Predict the time of all algorithms of a collective on these hosts, fastest first, with what bounds each.

    Every host has one port at a switch, which its ranks share: with 512x1, every rank has its own.

    Over several hosts, algorithms that calls can choose come first, with the name to choose them by. Others follow, for
    comparison.

    This starts no ranks: it computes the clock of every rank and every link from the tables that calls run.
    """
    own = file_algorithm(name)
    collective, _, short = (own.collective, "", "") if own else name.partition(".")
    places = Hosts.parse(hosts or (f"{ranks_of(name)}x1" if own else "64x8"))
    length, config = parse_bytes(nbytes), Config.from_env()
    hardware = Hardware(between=Link.parse(link) if link else config.link)
    if inside:
        hardware = replace(hardware, inside=Link.parse(inside, hardware.inside))
    where = Network(places, hardware)
    late = dict(_late(text, places.ranks) for text in late_rank or ())
    config = config.replace(link=hardware.between)
    every = list(candidates(collective, places, length, root, config))
    if own:
        every = [Candidate(own.full_name, partial(messages, own.schedule(places.ranks, root)), "", name)]
    wanted = [some for some in every if not short or short == some.algorithm or name == some.name]
    if not wanted:
        raise ArgumentError(
            f"unknown algorithm {name} for {plural(places.ranks, 'rank')}. Run unisono explain for a list."
        )
    with at_work(f"simulating {plural(places.ranks, 'rank')}"), no_collections():
        found = [
            price(some, where, length, late=late, segment_bytes=config.segment_bytes)
            for some in wanted
            if not some.why_not
        ]
    about = {some.name: some for some in wanted}
    found.sort(key=lambda of: (bool(about[of.name].priced_only), of.seconds))
    left_out = [some for some in wanted if some.why_not]
    out = console()
    size = "" if collective == "barrier" else f" · {format_bytes(length, nbytes)}"
    title = f"{plural(places.ranks, 'rank')} on {plural(len(places.members), 'host')} ({places.text})"
    out.print(f"[bold]{collective}[/] · {escape(title)}{size}", soft_wrap=True)
    out.print(f"{_links(hardware, places)}\n", soft_wrap=True)
    chosen = [one for one in found if not about[one.name].priced_only]
    if chosen:
        out.print(_table(chosen))
        by = f' (algorithm="{about[chosen[0].name].algorithm}")' if places.spans else ""
        out.print(f"\n{_short(chosen[0].name, collective)}{by}: {_sum(chosen[0])}", soft_wrap=True)
    if len(chosen) < len(found):
        out.print(f"{chr(10) * bool(chosen)}priced only: a call cannot choose these over hosts")
        out.print(_table(found[len(chosen) :]))
    for some in left_out:
        out.print(f"[dim]{_short(some.name, collective)}: {some.why_not}[/]", soft_wrap=True)


def _links(hardware: Hardware, hosts: Hosts) -> str:
    """Both links and the rate of adding, as far as the network has them."""
    inside = f"between ranks of a host {hardware.inside}" if max(map(len, hosts.members)) > 1 else ""
    between = f"between hosts {hardware.between}" if hosts.spans else ""
    return "; ".join(
        filter(None, [between, inside, f"a rank adds {format_bytes(hardware.combine_bytes_per_s, '1GB')}/s"])
    )


def _table(prices: Sequence[Price]) -> Table:
    table = plain_table()
    table.padding = 0, 2, 0, 0
    for column in ("", "takes", "most of it", "busiest link"):
        table.add_column(column, no_wrap=not column)
    for one in prices:
        table.add_row(*map(escape, [one.name.partition(".")[2], *_cells(one)]))
    return table


def _sum(one: Price) -> str:
    said = " + ".join(f"{format_seconds(part)} {name}" for name, part in one.parts.items() if part > _NOTHING_S)
    return f"{said or 0} = {format_seconds(one.seconds)}, for the rank that ends last"


def _cells(one: Price) -> list[str]:
    if not one.seconds:
        return [format_seconds(0), "", ""]
    return [
        format_seconds(one.seconds),
        f"{one.bound} {one.parts[one.bound] / one.seconds:.0%}",
        f"{one.link} {one.link_s / one.seconds:.0%}" if one.link else "",
    ]


def _short(name: str, collective: str) -> str:
    return name.removeprefix(f"{collective}.")


def _late(text: str, ranks: int) -> tuple[int, float]:
    found = _LATE.fullmatch(text.strip())
    if found is None or int(found["rank"]) >= ranks:
        raise ArgumentError(
            f"late rank: got {text!r}, expected one of the ranks 0 to {ranks - 1} and a time, such as 0:1ms"
        )
    return int(found["rank"]), Link.parse(found["time"]).latency_s
