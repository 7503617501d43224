"""The same faults over our backend, Gloo and torchft: `python -m benchmarks.faults`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from unisono.base.units import format_seconds

from ..reports import Output, counted, describe, grouped, hand_in, head, table
from .trial import CALLS, CONTENDERS, DEADLY, DETAIL, FAULTS, LIMIT_S, RANKS, TORCHFT, Trial, possible, trial

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


def faults_markdown(machine: Mapping[str, str], trials: Sequence[Trial]) -> list[str]:
    names = list(dict.fromkeys(one.contender for one in trials))
    lines = head("The same faults, side by side", machine, _HOW)
    if TORCHFT not in names:
        lines += ["", "torchft is not installed here."]
    lines += ["", "## In short", *table(["", *names], _summary(trials, names))]
    lines += ["", "## Each fault in each call"]
    lines += ["", "Above, what the others saw; below, how the ranks that are left went on."]
    lines += table(["fault", "call", *names], _rows(trials, names))
    lines += [
        "",
        "A send that is refused sends nothing; so, over all of them, the receiver takes the next message for it, and "
        "waits for that one.",
        "", "## What the errors say", "", "The first of each kind, as rank 0, or 1, saw it in an `all_reduce`.",
    ]  # fmt: skip
    return lines + table(["fault", *names], _quotes(trials, names))


def _first(one: Trial, rank: int) -> dict[str, Any] | None:
    """How the first round that was not right ended on a rank; the last round if all were; None if it had no end."""
    rounds = one.seen[rank]["rounds"] if rank in one.seen else []
    return next((each for each in rounds if each["data"] != "right"), rounds[-1] if rounds else None)


def _others(trials: Sequence[Trial]) -> list[tuple[Trial, int, dict[str, Any] | None]]:
    return [(one, rank, _first(one, rank)) for one in trials for rank in range(RANKS) if rank != one.victim]


def _saw(trials: Sequence[Trial], data: str = "error") -> list[dict[str, Any]]:
    """The rounds of others that ended in this way."""
    return [first for _, _, first in _others(trials) if first and first["data"] == data]


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
    faulty, late = [fault for fault in FAULTS if fault != "late"], ["late"]
    dead, alive = ["exit", "SIGKILL"], [fault for fault in faulty if fault not in DEADLY]

    def told(of: Sequence[Trial]) -> str:
        return f"{len(_saw(of))} of {len(_others(of))}"

    rows: dict[str, tuple[Sequence[str], Callable[[Sequence[Trial]], str]]] = {
        "other ranks that got an error": (faulty, told),
        "errors that name the victim": (
            faulty, lambda of: f"{sum(error['names'] for error in _saw(of))} of {len(_saw(of))}"
        ),
        "other ranks whose call returned with wrong data": (faulty, lambda of: str(len(_saw(of, "wrong")))),
        "processes that ended by SIGABRT or the like": (faulty, lambda of: str(_aborted(of))),
        "a dead rank is told after, median": (dead, lambda of: _time(error["seconds"] for error in _saw(of))),
        "... and a smaller group works after, median": (dead, lambda of: _time(_new(of))),
        "nobody has died, and the group goes on as it is": (alive, lambda of: f"{sum(map(_same, of))} of {len(of)}"),
        "late, and an error all the same": (late, told),
    }  # fmt: skip
    for title, (faults, figure) in rows.items():
        mine = [[one for one in trials if one.contender == name and one.fault in faults] for name in names]
        yield [title, *map(figure, mine)]


def _same(one: Trial) -> bool:
    return len(one.seen) == RANKS and all(end["same group"] for end in one.seen.values())


def _new(trials: Sequence[Trial]) -> list[float]:
    return [end["new group"] for one in trials for end in one.seen.values() if "new group" in end]


def _time(of: Any) -> str:
    times = list(of)
    return format_seconds(median(times)) if times else "never"


def _rows(trials: Sequence[Trial], names: Sequence[str]) -> Iterator[list[str]]:
    for (fault, call), of_call in grouped(trials, "fault", "call").items():
        of = grouped(of_call, "contender")
        yield [fault, call, *(_cell(of.get((name,), [])) for name in names)]


def _cell(trials: Sequence[Trial]) -> str:
    wrong = {"wrong": "**wrong data**", "right": "right data"}
    seen = counted(
        _ended(one, rank) if first is None else wrong.get(first["data"], first.get("error", ""))
        for one, rank, first in _others(trials)
    )
    if errors := _saw(trials):
        names = sum(error["names"] for error in errors)
        named = {0: "no name", len(errors): "named"}.get(names, f"named in {names} of {len(errors)}")
        seen += f", {named}, {_time(error['seconds'] for error in errors)}"
    took = f" {_time(_new(trials))}" if _new(trials) else ""
    ways = counted(map(_way, trials)).split(", ")
    return f"{seen}<br>{', '.join(way + took if way.startswith('new group') else way for way in ways)}"


def _way(one: Trial) -> str:
    if _same(one):
        return "same group"
    if not one.seen or not all("new group" in end for end in one.seen.values()):
        return "does not go on"
    return "new group of the rest" if _aborted([one]) else "new group"


def _quotes(trials: Sequence[Trial], names: Sequence[str]) -> Iterator[list[str]]:
    for (fault,), of_fault in grouped((one for one in trials if one.call == "all_reduce"), "fault").items():
        cells = []
        for name in names:
            mine = [one for one in of_fault if one.contender == name]
            said = [f"{error['error']}: {error['text']}" for error in _saw(mine)]
            aborted = [one for one in mine if _aborted([one])]
            said += [one.printed[rank] for one in aborted for rank in one.ended if rank not in one.seen]
            cells.append(_short(said[0]) if said else "")
        if any(cells):
            yield [fault, *cells]


def _short(text: str) -> str:
    """One line of it, without the folder of this repository, and without what a table would take for its own."""
    line = " ".join(text.replace(f"{Path.cwd()}/", "").split()).replace("|", "\\|")
    return line if len(line) <= _LONGEST else line[:_LONGEST] + " …"


def bench_faults(
    *,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each fault in each call.")] = RANKS,
    faults: Annotated[str, typer.Option(help="Which faults.")] = ",".join(FAULTS),
    calls: Annotated[str, typer.Option(help="Which calls.")] = ",".join(CALLS),
    output: Output = None,
) -> None:
    """Let a rank fail in each way in each call, and see what the others see, with each contender in turn."""
    machine = describe()
    cases = [(fault, call) for fault in faults.split(",") for call in calls.split(",") if possible(fault, call)]
    done = []
    for fault, call in cases:
        for number in range(trials):
            done += [trial(name, fault, call, number % RANKS) for name in CONTENDERS]
        print(f"{fault}, {call}", file=sys.stderr)
    hand_in(faults_markdown(machine, done), output)


if __name__ == "__main__":
    typer.run(bench_faults)
