"""Numbers as text: runs of ranks, shares of a vector, costs."""

from __future__ import annotations

from collections.abc import Iterable

from ...base.units import plural
from ..count import count, levels
from ..table import Schedule


def spans(numbers: Iterable[int], comma: str = ",") -> str:
    """[0, 1, 2, 5] -> `0..2,5`: three or more consecutive numbers become a span."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return comma.join(f"{run[0]}..{run[-1]}" if len(run) > 2 else comma.join(map(str, run)) for run in runs)


def share(fraction: float, parts: int) -> str:
    """A share of a vector of m bytes, in units of 1/parts: 1.5 with 4 parts -> `6/4 m`; 2.0 -> `2 m`; 0.0 -> `0`."""
    pieces = fraction * parts
    if abs(fraction - round(fraction)) < 1e-9:
        return f"{round(fraction)} m" if round(fraction) else "0"
    exact = parts < 1000 and abs(pieces - round(pieces)) < 1e-9
    return f"{round(pieces)}/{parts} m" if exact else f"{fraction:.3g} m"


def costs(schedule: Schedule) -> str:
    """What the busiest rank sends, receives and adds, as one line."""
    counts, p = count(schedule), schedule.ranks
    amounts = (("sends", counts.most_sent), ("receives", counts.most_received), ("adds", counts.most_added))
    said = [f"{verb} ≤ {share(amount, p)}" for verb, amount in amounts if amount and schedule.collective != "barrier"]
    return f"a rank {', '.join(said)}" if said else "no data moves"


def size(schedule: Schedule) -> str:
    """Such as `4 ranks`, or `4 ranks on 2 hosts`."""
    hosts = schedule.hosts
    ranks = plural(schedule.ranks, "rank")
    return f"{ranks} on {plural(len(hosts.members), 'host')}" if hosts and hosts.spans else ranks


def between(schedule: Schedule) -> list[str]:
    """What goes between hosts, as one line; none where no hosts are known, or only one."""
    if not schedule.hosts or not schedule.hosts.spans:
        return []
    found, p = levels(schedule), schedule.ranks
    amounts = (("sends", max(found.leaves)), ("receives", max(found.enters)))
    said = [f"{verb} ≤ {share(amount, p)}" for verb, amount in amounts if amount and schedule.collective != "barrier"]
    rounds = f"between hosts: {plural(found.between, 'round')}"
    return [f"{rounds}; a host {', '.join(said)}" if said else rounds]
