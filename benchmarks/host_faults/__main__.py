"""Faults over several hosts, in network namespaces: `python -m benchmarks.host_faults`, as root."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from tests.support.cluster import Cluster, why_not

from unisono.schedule import Hosts

from ..machine import LOAD, describe, load, report_path
from ..names import GLOO, OURS
from .rank import LATE_PLACES, PLACES
from .report import host_faults_markdown
from .trial import FAULTS, Ended, Trial, trial

_GLOO_FAULTS, _GLOO_PLACES, _GLOO_LIMIT_S = ("kill", "stop", "cut link"), ("gate", "receive", "long call"), 20.0
"""With stops and cuts, Gloo waits for its time-out."""


def bench_host_faults(
    *,
    shape: Annotated[str, typer.Option(help="Hosts.")] = "3x2",
    trials: Annotated[int, typer.Option(min=1, help="Trials of each fault in each place.")] = 3,
    faults: Annotated[str, typer.Option(help="Which faults.")] = ",".join(FAULTS),
    places: Annotated[str, typer.Option(help="Where ranks wait.")] = ",".join(PLACES),
    engines: Annotated[str, typer.Option(help="Which engines.")] = f"{OURS},{GLOO}",
    record: Annotated[Path | None, typer.Option(help="Append the trials here, and report all that are there.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write Markdown here; {vendor} stands for amd, intel ...")] = None,
) -> None:
    """Let something happen while ranks wait, and see what each of them says, when, and what is left behind."""
    if reason := why_not():
        sys.exit(reason)
    machine, done = {**describe(), LOAD: load()}, _recorded(record)
    with closing(Cluster(Hosts.parse(shape))) as cluster:
        for engine in engines.split(","):
            for fault in faults.split(","):
                for place in places.split(","):
                    if engine == GLOO and (fault not in _GLOO_FAULTS or place not in _GLOO_PLACES):
                        continue
                    if fault == "late" and place not in LATE_PLACES:
                        continue
                    for number in range(trials if engine == OURS else 1):
                        limit = _GLOO_LIMIT_S if engine == GLOO else None
                        one = trial(cluster, engine, fault, place, number, limit)
                        done.append(one)
                        if record is not None:
                            with record.open("a") as file:
                                file.write(json.dumps(one) + "\n")
                    print(f"{engine}: {fault}, {place}", file=sys.stderr, flush=True)
    report = host_faults_markdown(machine, shape, done)
    if output:
        report_path(output).write_text(report)
    else:
        print(report)


def _recorded(record: Path | None) -> list[Trial]:
    """The trials of earlier runs."""
    lines = record.read_text().splitlines() if record is not None and record.exists() else []
    return [_trial(json.loads(line)) for line in lines]


def _trial(told: list[Any]) -> Trial:
    engine, fault, place, victims, absent, said, left = told
    ends = {int(rank): Ended(*(_tuple(value) for value in end)) for rank, end in said.items()}
    return Trial(engine, fault, place, _tuple(victims), _tuple(absent), ends, _tuple(left))


def _tuple(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value


if __name__ == "__main__":
    typer.run(bench_host_faults)
