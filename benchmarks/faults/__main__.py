"""The same faults over our backend, Gloo and torchft: `python -m benchmarks.faults`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in torch's __all__

from ..machine import LOAD, describe, load, report_path
from .contenders import contenders
from .report import faults_markdown
from .trial import CALLS, FAULTS, RANKS, possible, trial


def bench_faults(
    *,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each fault in each call.")] = RANKS,
    faults: Annotated[str, typer.Option(help="Which faults.")] = ",".join(FAULTS),
    calls: Annotated[str, typer.Option(help="Which calls.")] = ",".join(CALLS),
    output: Annotated[Path | None, typer.Option(help="Write Markdown here; {vendor} stands for amd, intel ...")] = None,
) -> None:
    """Let a rank fail in each way in each call, and see what the others see, with each contender in turn."""
    machine = {**describe(), LOAD: load()}
    cases = [(fault, call) for fault in faults.split(",") for call in calls.split(",") if possible(fault, call)]
    done = []
    for fault, call in cases:
        for number in range(trials):
            for name in contenders():
                store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
                done.append(trial(name, fault, call, number % RANKS, store.port))
        print(f"{fault}, {call}", file=sys.stderr)
    report = faults_markdown(machine, done)
    if output:
        report_path(output).write_text(report)
    else:
        print(report)


if __name__ == "__main__":
    typer.run(bench_faults)
