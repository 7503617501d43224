"""A map of what is best where: sizes by numbers of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...base.config import Config
from ...base.errors import ArgumentError
from ...base.units import format_bytes, format_seconds
from ..hosts import Hosts
from .networks.network import Network
from .survey import Ready, candidates, price, ready

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class BestMap(NamedTuple):
    """What is best where, of what calls can choose. best[k][i]: its name and seconds, at hosts[k] and sizes[i]."""

    title: str
    hosts: tuple[Hosts, ...]
    sizes: tuple[int, ...]
    best: tuple[tuple[tuple[str, float], ...], ...]

    @property
    def names(self) -> list[str]:
        """What is best somewhere, in the order of appearance."""
        return list(dict.fromkeys(name for row in self.best for name, _ in row))


def best_map(
    collective: str,
    shapes: Sequence[Hosts],
    sizes: Sequence[int],
    make: Callable[[Hosts], Network],
    *,
    segment_bytes: int = 0,
    show: Callable[[int, str], None] = lambda _done, _what: None,
) -> BestMap:
    """Price all ways to do a collective on some hosts. make: their network. show: is told how far it has come."""
    rows, name = [], ""
    for done, hosts in enumerate(shapes):
        show(done, hosts.text)
        network = make(hosts)
        name = network.name.partition(":")[0]
        config = replace(Config.from_env(), link=network.hardware.between)
        made: dict[str, Ready] = {}
        row = []
        for size in sizes:
            prices = []
            for some in candidates(collective, hosts, size, config=config):
                if some.why_not or some.priced_only:
                    continue
                if some.name not in made:
                    made[some.name] = ready(some, network)
                prices.append(price(made[some.name], network, size, segment_bytes=segment_bytes))
            if not prices:
                raise ArgumentError(f"{collective}: a call over these hosts can choose no algorithm, so no map has it")
            best = min(prices, key=lambda of: of.seconds)
            row.append((best.name, best.seconds))
        rows.append(tuple(row))
    show(len(shapes), "")
    return BestMap(f"{collective} on {name}", tuple(shapes), tuple(sizes), tuple(rows))


def best_map_text(found: BestMap) -> str:
    """The map as text: a letter for each algorithm, a line for each number of ranks, the most on top."""
    letter = {name: _LETTERS[k] if k < len(_LETTERS) else "?" for k, name in enumerate(found.names)}
    heads = [format_bytes(size) for size in found.sizes]
    wide, edge = max(map(len, heads)) + 1, max(len(f"{hosts.ranks} ranks") for hosts in found.hosts)
    lines = [" " * edge + "".join(f"{head:>{wide}}" for head in heads)]
    for hosts, row in reversed(list(zip(found.hosts, found.best, strict=True))):
        cells = "".join(f"{letter[name]:>{wide}}" for name, _ in row)
        lines.append(f"{f'{hosts.ranks} ranks':>{edge}}{cells}")
    times = {name: min(s for row in found.best for best, s in row if best == name) for name in found.names}
    keys = [f"{letter[name]}  {name} (from {format_seconds(times[name])})" for name in found.names]
    return "\n".join([*lines, "", *keys])
