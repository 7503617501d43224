"""Every fault at every row, rehearsed in one process; then faults in live ranks: what the others see, and how soon.

python -m benchmarks.chaos
"""

import itertools
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Annotated, Any, NamedTuple

import torch
import typer
from tests.support.rehearsal import lowerings, rehearse, rows_of

import unisono
from unisono.schedule.algorithms import CATALOGUE
from unisono.tools.testing import chaos
from unisono.tools.testing.chaos import FAULTS

from .busy import hogs
from .runs import RANKS, Output, Run, Table, begin, grouped, hand_in, percentile
from .turns import Meeting

CALLS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "all_reduce, 8 B": ("all_reduce", lambda _: unisono.all_reduce(torch.ones(2))),
    "all_reduce, 400 KB": ("all_reduce", lambda _: unisono.all_reduce(torch.ones(100_000))),
    "all_reduce, 4 MB": ("all_reduce", lambda _: unisono.all_reduce(torch.ones(1_000_000))),
    "all_reduce, shared": ("all_reduce", lambda _: unisono.all_reduce(unisono.empty(100_000).fill_(1.0))),
    "broadcast": ("broadcast", lambda _: unisono.broadcast(torch.ones(100_000), 1)),
    "all_gather": ("all_gather", lambda n: unisono.all_gather_single(torch.empty(1000 * n), torch.ones(1000))),
    "barrier": ("barrier", lambda _: unisono.barrier()),
}
"""Name -> the collective, and a call of it by one of n ranks."""

_HOW = (
    "Rehearsed in one process: a rank dies or is late before each row of each algorithm, in every lowering.",
    "Live, in `run`, two to four ranks, half of the times each on a host of its own; each survivor's time counts, in "
    "ms, from when the call began.",
)
_LATE = ("stop", "hold", "delay")
_LATE_S = 0.15


Rehearsed = tuple[str, int, Counter[str]]
"""An algorithm, how many faults were tried, and how the calls ended on ranks."""


def rehearsals(most: int, part: int = 0, parts: int = 1) -> list[Rehearsed]:
    """Every algorithm, or one of `parts`, on 2 to `most` ranks, with every fault at every row."""
    done = []
    for name, algorithm in list(CATALOGUE.items())[part::parts]:
        tried, ends = 0, Counter[str]()
        for ranks in range(2, most + 1):
            if not algorithm.allows(ranks):
                continue
            schedule = algorithm.schedule(ranks)
            for lowering, victim in itertools.product(lowerings(schedule), range(ranks)):
                for row in range(rows_of(schedule, victim, lowering)):
                    ends.update(rehearse(schedule, lowering, kill=victim, row=row))
                    ends.update(rehearse(schedule, lowering, delay=victim, row=row))
                    tried += 2
        done.append((name, tried, ends))
    return done


def live(call: str, fault: str, victim: int, row: int | None, folder: str) -> None:
    """One trial on this rank: five calls, the third with the fault. It tells what it sees."""
    group, (collective, make), meeting = unisono.init(), CALLS[call], Meeting(folder)
    me = group.rank
    for _ in range(2):
        make(group.size)
    at = (collective, 1) if row is None else (collective, 1, "row", row)
    seen: dict[str, Any] = {"end": "went on"}
    if me == victim:
        meeting.tell(f"fault {me}", time.monotonic())
    try:
        with chaos(at=at, duration_s=_LATE_S, **{fault: victim}):  # type: ignore[arg-type]  # its name is data
            for _ in range(3):
                make(group.size)
    except unisono.PeerGone as error:
        heard = time.monotonic()
        smaller = group.shrink()
        shrunk = time.monotonic()
        mine = torch.tensor([2.0**me])
        unisono.all_reduce(mine)
        worked = time.monotonic()
        right = mine.item() == 2.0**group.size - 1 - 2.0**victim and smaller.size == group.size - 1
        seen = {
            "end": f"failed {list(error.failed)}", "right": right, "heard": heard,
            "shrunk": shrunk - heard, "worked": worked - shrunk,
        }  # fmt: skip
    except (unisono.MismatchError, unisono.ArgumentError) as error:
        seen["end"] = "mismatch" if isinstance(error, unisono.MismatchError) else "refused"
        make(group.size)  # the group goes on
    meeting.tell(f"seen {me}", seen)


class Trial(NamedTuple):
    """seen: by rank. at: when the call began in which the fault happened."""

    fault: str
    victim: int
    ranks: int
    at: float
    seen: Mapping[int, Mapping[str, Any]]

    @property
    def as_it_should(self) -> bool:
        """Did every rank that is left see what it should?"""
        left = [rank for rank in range(self.ranks) if rank != self.victim or self.fault not in ("kill", "exit")]
        return sorted(self.seen) == left and all(self._fits(rank) for rank in left)

    def _fits(self, rank: int) -> bool:
        seen = self.seen[rank]
        if self.fault in ("kill", "exit"):
            return bool(seen["end"] == f"failed [{self.victim}]" and seen["right"])
        if self.fault in _LATE:
            return bool(seen["end"] == "went on")
        return bool(seen["end"] == ("refused" if self.fault == "refuse" and rank == self.victim else "mismatch"))


def trial(rng: random.Random, fault: str, *, over_hosts: bool = False) -> Trial:
    ranks = rng.choice([2, 3, 4])
    call, victim = rng.choice(list(CALLS)), rng.randrange(ranks)
    row = None if fault in ("refuse", "mismatch") else rng.choice([None, 0, 1, 2][: 3 + over_hosts])
    hosts = f"{ranks}x1" if over_hosts else None
    with tempfile.TemporaryDirectory() as folder:
        args = call, fault, victim, row, folder
        unisono.run(live, ranks, args=args, hosts=hosts, timeout_s=60, return_exceptions=True)
        meeting = Meeting(folder)
        return Trial(fault, victim, ranks, meeting.told("fault", [victim])[victim], meeting.told("seen", range(ranks)))


def busy(seconds: float) -> int:
    """Small and long calls on this rank, back to back, for so long; how many."""
    stop, calls = torch.zeros(1), 0
    began = time.monotonic()
    while not stop.item():
        for name in ("all_reduce, 8 B", "all_reduce, 400 KB", "barrier"):
            CALLS[name][1](unisono.get_world_size())
            calls += 1
        stop.fill_(float(time.monotonic() - began > seconds))
        unisono.broadcast(stop, 0)
    return calls


def fill(
    run: Run, rehearsed: Sequence[Rehearsed], trials: Sequence[Trial], alarms: Mapping[int, tuple[int, int]], most: int
) -> None:
    """Add the tables to a run. alarms: ranks per processor -> calls made, and errors."""
    ends = sum((ends for _, _, ends in rehearsed), Counter[str]())
    tried = sum(count for _, count, _ in rehearsed)
    rows = list[list[str | int]]()
    for (fault,), mine in grouped(trials, "fault").items():
        said = [(one.at, seen) for one in mine for seen in one.seen.values() if "heard" in seen]
        heard = [seen["heard"] - at for at, seen in said]
        times = heard, *([seen[what] for _, seen in said] for what in ("shrunk", "worked"))
        cells = [
            f"{figure(of) * 1e3:.1f}" if of else "" for of in times for figure in (median, partial(percentile, 99))
        ]
        rows.append([fault, len(mine), sum(one.as_it_should for one in mine), *cells])
    right = ["algorithms", "ranks", "faults", "right results", "errors that name the dead rank"]
    titles = [f"{what}: {figure}" for what in ("error", "smaller group", "first call") for figure in ("median", "p99")]
    run.tables = [
        Table("rehearsed", right, [[len(rehearsed), f"2 to {most}", tried, ends["done"], ends["told"]]]),
        Table("live", ["fault", "trials", "as expected", *titles], rows),
        Table(
            "false alarms beside one background process",
            ["ranks per processor", "calls", "false alarms"],
            [[share, *found] for share, found in alarms.items()],
        ),
    ]


def bench_chaos(
    *,
    most: Annotated[int, typer.Option(min=2, help="Ranks of the largest rehearsal.")] = 8,
    trials: Annotated[int, typer.Option(min=0, help="Live trials of each fault.")] = 80,
    seconds: Annotated[float, typer.Option(help="For how long to look for false alarms.")] = 10.0,
    output: Output = None,
) -> None:
    """Try every fault at every row in one process, and faults at random places in live ranks."""
    run = begin("Chaos", *_HOW, code=RANKS)
    rng = random.Random(0)  # noqa: S311  the same faults each time
    parts = len(os.sched_getaffinity(0))
    shares = unisono.run(lambda: rehearsals(most, unisono.get_rank(), parts), parts, timeout_s=None)
    rehearsed = list(itertools.chain(*shares))
    tried = [trial(rng, fault, over_hosts=n % 2 == 1) for fault in FAULTS for n in range(trials)]
    alarms = {}
    for share in (4, 8):
        with hogs(1):
            ranks = share * len(os.sched_getaffinity(0))
            ends = unisono.run(busy, ranks, args=(seconds,), timeout_s=600, return_exceptions=True)
        errors = sum(isinstance(end, BaseException) for end in ends)
        alarms[share] = sum(end for end in ends if isinstance(end, int)), errors
    fill(run, rehearsed, tried, alarms, most)
    hand_in(run, output)
    wrong = [one for one in tried if not one.as_it_should]
    if wrong or any(errors for _, errors in alarms.values()):
        print(*wrong, sep="\n")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench_chaos)
