"""Faults over several hosts, in network namespaces: `python -m benchmarks.host_faults`, as root."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import product
from typing import Annotated

import typer
from tests.support.cluster import Cluster, why_not

from unisono.schedule import Hosts

from ..reports import Output, counted, describe, grouped, hand_in, head, median_and_most, table
from .rank import LATE_PLACES, PLACES
from .trial import FAULTS, Ended, Trial, trial

_HOW = """\
Hosts are network namespaces of this machine, joined by a switch; links have 200 Mbit/s where long messages are under
way. Ranks wait in one place, something happens, and each says how its call has ended. `gate`: in an all_reduce that
one rank has not begun, which is the victim, or on its host. `send`, `receive`: in a message of 4 MiB to or from that
rank. `long call`: all ranks are in an all_reduce of 32 MiB. `messages`: all send 4 MiB to all ranks of other hosts.
Who has not begun does so as soon as the fault has happened, if it is there.

Times are from the fault to the error, of all survivors in all trials: median, worst. *Names*: how many errors name
victims and nobody else; where hosts are cut off, ranks of the other side. A message names the one who does not
answer: that is another one where this one has gone on without the victim. And a death does not end messages between
others: in `messages` a rank hears of it when it comes to wait for one from or to the victim, or for a rank that has
gone on. *Goes on*: how many then have a smaller
group in which an all_reduce is right (by `shrink`; of those who were late, `shrink(without=...)`), and the time that
takes. *Left out*: how many are told so. *Same*: in how many trials all who go on have the same members. *Left*: in
how many trials a process is there five seconds after the end."""


def host_faults_markdown(machine: Mapping[str, str], shape: str, trials: Sequence[Trial]) -> list[str]:
    hosts = Hosts.parse(shape)
    how = f"{shape}: {len(hosts.members)} hosts, {hosts.ranks} ranks. {_HOW}"
    lines = [*head("Faults over several hosts", machine, how), ""]
    lines += [f"- `{name}`: {text}" for name, text in FAULTS.items()]
    titles = ["fault", "place", "trials", "errors", "names", "after", "goes on", "left out", "same", "left"]
    return lines + table(titles, _rows(trials, hosts))


def _survivors(one: Trial) -> dict[int, Ended]:
    """The ranks that the fault has not ended, or stopped, and so must say something."""
    ended = {"kill", "kill rank 0", "kill host", "stop", "stop host", "Ctrl-C"}
    return {rank: end for rank, end in one.said.items() if rank not in one.victims or one.fault not in ended}


def _right(one: Trial, rank: int, end: Ended, hosts: Hosts) -> bool:
    here, named = hosts.beside(rank), set(end.named)
    if one.fault == "late":
        return bool(named) and named <= set(one.absent)
    if rank in one.victims or (one.fault == "cut switch" and end.error):
        return bool(named) and named.isdisjoint(here)
    return bool(named) and named <= set(one.victims)


def _rows(trials: Sequence[Trial], hosts: Hosts) -> Iterator[list[str]]:
    for (fault, place), found in grouped(trials, "fault", "place").items():
        ends = [(one, rank, end) for one in found for rank, end in _survivors(one).items()]
        errors = [(one, rank, end) for one, rank, end in ends if end.error]
        kinds = counted(end.error or ("nothing" if end.after_s is None else "none") for _, _, end in ends)
        right = sum(_right(one, rank, end, hosts) for one, rank, end in errors)
        goes = [end for _, _, end in ends if end.after == "right"]
        times = f"{len(goes)} of {len(ends)}" + (f", {median_and_most([end.seconds for end in goes])}" if goes else "")
        same = sum(
            len({tuple(end.left) for end in _survivors(one).values() if end.after == "right"}) <= 1 for one in found
        )
        left = sum(bool(one.left_behind) for one in found)
        yield [
            fault, place, str(len(found)), kinds if errors else "no error",
            f"{right} of {len(errors)}" if errors else "",
            median_and_most([end.after_s for _, _, end in ends if end.after_s is not None]),
            times if errors else "same group", str(sum(end.after == "LeftOut" for _, _, end in ends)),
            f"{same} of {len(found)}", str(left),
        ]  # fmt: skip


def bench_host_faults(
    *,
    shape: Annotated[str, typer.Option(help="Hosts.")] = "3x2",
    trials: Annotated[int, typer.Option(min=1, help="Trials of each fault in each place.")] = 3,
    faults: Annotated[str, typer.Option(help="Which faults.")] = ",".join(FAULTS),
    places: Annotated[str, typer.Option(help="Where ranks wait.")] = ",".join(PLACES),
    output: Output = None,
) -> None:
    """Let something happen while ranks wait, and see what each of them says, when, and what is left behind."""
    if reason := why_not():
        sys.exit(reason)
    machine, done = describe(), list[Trial]()
    with closing(Cluster(Hosts.parse(shape))) as cluster:
        for fault, place in product(faults.split(","), places.split(",")):
            if fault == "late" and place not in LATE_PLACES:
                continue
            done += [trial(cluster, fault, place, number) for number in range(trials)]
            print(f"{fault}, {place}", file=sys.stderr, flush=True)
    hand_in(host_faults_markdown(machine, shape, done), output)


if __name__ == "__main__":
    typer.run(bench_host_faults)
