"""The results as Markdown: a summary, a line for each fault in each call, and what the errors say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from unisono.base.units import format_seconds

from .contenders import DETAIL, TORCHFT
from .trial import CALLS, DEADLY, FAULTS, LIMIT_S, RANKS, Trial

_HOW = f"""\
{RANKS} ranks, float32, 100 KB, the same program for all; a time-out of {LIMIT_S:.0f} s for each (Gloo's default is 30
minutes, ours 5). Something happens to one rank, the victim, instead of its second call or in it; each is the victim in
turn. In a broadcast it is the victim that has the data, and in send/recv that sends it to the others. `longer` and
`shorter`: the victim's tensor has twice or half the size. `refused`: an argument of the victim's call raises an error
there, and its program goes on with the next call, as all do. `late`: the victim comes a second late, which is no fault.

The time is that of a call of the others, from its start to its error. An error *names* the victim if its text has the
words "rank" and that number. When all that are left have heard, and have been told by the benchmark who is left, they
try to go on: with a third call in the same group, or else in a new group, whose time runs until its first `all_reduce`
has the right result. Ours is made by `dist.shrink_group`; Gloo's by `destroy_process_group` and `init_process_group`,
torchft's by `reconfigure_with_store`, at a store that no rank holds: if rank 0 held it, as it does with `env://`, it
would die with rank 0. `{DETAIL}`: with `TORCH_DISTRIBUTED_DEBUG=DETAIL`, with which torch compares the calls first."""

_LONGEST = 300


def faults_markdown(machine: Mapping[str, str], trials: Sequence[Trial]) -> str:
    """The whole report."""
    names = list(dict.fromkeys(one.contender for one in trials))
    lines = ["# The same faults, side by side", ""]
    lines += [*(f"- {name}: {f'`{value}`' if name == 'command' else value}" for name, value in machine.items()), ""]
    lines += [_HOW, ""]
    if TORCHFT not in names:
        lines += ["torchft is not installed here.", ""]
    lines += ["## In short", "", *_table(["", *names], _summary(trials, names)), ""]
    lines += ["## Each fault in each call", ""]
    lines += ["Above, what the others saw; below, how the ranks that are left went on.", ""]
    lines += [*_table(["fault", "call", *names], _rows(trials, names)), ""]
    lines += [
        "A send that is refused sends nothing; so, over all of them, the receiver takes the next message for it, and "
        "waits for that one.",
        "", "## What the errors say", "", "The first of each kind, as rank 0, or 1, saw it in an `all_reduce`.", "",
    ]  # fmt: skip
    return "\n".join([*lines, *_table(["fault", *names], _quotes(trials, names))]) + "\n"


def _first(one: Trial, rank: int) -> dict[str, Any] | None:
    """How the first round that was not right ended on a rank; the last round if all were; None if it had no end."""
    rounds = one.seen[rank]["rounds"] if rank in one.seen else []
    return next((each for each in rounds if each["data"] != "right"), rounds[-1] if rounds else None)


def _others(trials: Sequence[Trial]) -> list[tuple[Trial, int, dict[str, Any] | None]]:
    return [(one, rank, _first(one, rank)) for one in trials for rank in range(RANKS) if rank != one.victim]


def _errors(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    return [first for _, _, first in _others(trials) if first and first["data"] == "error"]


def _ended(one: Trial, rank: int) -> str:
    """How the process of a rank ended that has told nothing."""
    if found := re.search(r"SIG\w+", one.ended.get(rank, "")):
        return found[0]
    return "hangs" if rank in one.ended else "nothing"


def _aborted(trials: Sequence[Trial]) -> int:
    """Ranks whose process was ended by a signal that nobody had sent."""
    return sum(
        _ended(one, rank).startswith("SIG")
        for one in trials
        for rank in range(RANKS)
        if rank not in one.seen and (rank != one.victim or one.fault not in DEADLY)
    )


def _summary(trials: Sequence[Trial], names: Sequence[str]) -> Iterator[list[str]]:
    mine = {name: [one for one in trials if one.contender == name] for name in names}
    faulty = {name: [one for one in of if one.fault != "late"] for name, of in mine.items()}
    dead = {name: [one for one in of if one.fault in ("exit", "SIGKILL")] for name, of in mine.items()}
    alive = {name: [one for one in of if one.fault not in (*DEADLY, "late")] for name, of in mine.items()}
    late = {name: [one for one in of if one.fault == "late"] for name, of in mine.items()}

    def row(title: str, cells: Mapping[str, str]) -> list[str]:
        return [title, *cells.values()]

    yield row(
        "other ranks that got an error", {n: f"{len(_errors(o))} of {len(_others(o))}" for n, o in faulty.items()}
    )
    yield row(
        "errors that name the victim",
        {n: f"{sum(e['names'] for e in _errors(o))} of {len(_errors(o))}" for n, o in faulty.items()},
    )
    yield row("other ranks whose call returned with wrong data", {n: str(_wrong(o)) for n, o in faulty.items()})
    yield row("processes that ended by SIGABRT or the like", {n: str(_aborted(o)) for n, o in faulty.items()})
    yield row(
        "a dead rank is told after, median", {n: _time(e["seconds"] for e in _errors(o)) for n, o in dead.items()}
    )
    yield row("... and a smaller group works after, median", {n: _time(_new(o)) for n, o in dead.items()})
    yield row(
        "nobody has died, and the group goes on as it is",
        {n: f"{sum(_same(one) for one in o)} of {len(o)}" for n, o in alive.items()},
    )
    yield row(
        "late, and an error all the same", {n: f"{len(_errors(o))} of {len(_others(o))}" for n, o in late.items()}
    )


def _wrong(trials: Sequence[Trial]) -> int:
    return sum(first is not None and first["data"] == "wrong" for _, _, first in _others(trials))


def _same(one: Trial) -> bool:
    return len(one.seen) == RANKS and all(end["same group"] for end in one.seen.values())


def _new(trials: Sequence[Trial]) -> list[float]:
    return [end["new group"] for one in trials for end in one.seen.values() if "new group" in end]


def _time(of: Any) -> str:
    times = list(of)
    return format_seconds(median(times)) if times else "never"


def _rows(trials: Sequence[Trial], names: Sequence[str]) -> Iterator[list[str]]:
    for fault in FAULTS:
        for call in CALLS:
            cells = [
                [one for one in trials if (one.contender, one.fault, one.call) == (name, fault, call)] for name in names
            ]
            if any(cells):
                yield [fault, call, *map(_cell, cells)]


def _cell(trials: Sequence[Trial]) -> str:
    others = _others(trials)
    ends = Counter(
        _ended(one, rank) if first is None else {"error": first.get("error"), "wrong": "**wrong data**"}.get(
            first["data"], "right data"
        )
        for one, rank, first in others
    )  # fmt: skip
    seen = ", ".join(f"{end} ×{count}" if len(ends) > 1 else str(end) for end, count in ends.items())
    if errors := _errors(trials):
        names = sum(error["names"] for error in errors)
        named = {0: "no name", len(errors): "named"}.get(names, f"named in {names} of {len(errors)}")
        seen += f", {named}, {_time(error['seconds'] for error in errors)}"
    return f"{seen}<br>{_going_on(trials)}"


def _going_on(trials: Sequence[Trial]) -> str:
    ways = Counter(map(_way, trials))
    times = {"new group": _new(trials), "new group of the rest": _new(trials)}
    return ", ".join(
        way + (f" ×{count}" if len(ways) > 1 else "") + (f" {_time(times[way])}" if times.get(way) else "")
        for way, count in ways.items()
    )


def _way(one: Trial) -> str:
    if _same(one):
        return "same group"
    if not one.seen or not all("new group" in end for end in one.seen.values()):
        return "does not go on"
    return "new group of the rest" if _aborted([one]) else "new group"


def _quotes(trials: Sequence[Trial], names: Sequence[str]) -> Iterator[list[str]]:
    for fault in FAULTS:
        cells = []
        for name in names:
            mine = [one for one in trials if (one.contender, one.fault, one.call) == (name, fault, "all_reduce")]
            said = [f"{error['error']}: {error['text']}" for error in _errors(mine)]
            said += [
                one.printed[rank] for one in mine for rank in one.ended if _aborted([one]) and rank not in one.seen
            ]
            cells.append(_short(said[0]) if said else "")
        if any(cells):
            yield [fault, *cells]


def _short(text: str) -> str:
    """One line of it, without the folder of this repository, and without what a table would take for its own."""
    line = " ".join(text.replace(f"{Path.cwd()}/", "").split()).replace("|", "\\|")
    return line if len(line) <= _LONGEST else line[:_LONGEST] + " …"


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [list(head), ["---"] * len(head), *rows]]
