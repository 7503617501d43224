"""What the first group and the first call of a fresh process cost, beside Gloo, by part.

    python -m benchmarks.first_call

Two processes start, import torch, make a group and call all_reduce. Contenders take turns. Processor time of all
threads counts from `import torch` on, of the rank that takes more: mostly rank 0, which has torch's store.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from tests.support.ports import free_port

from .reports import GLOO, OURS, Output, describe, hand_in, head, in_ms, table

FIRST, OTHER = f"{OURS}, nothing on disk", "another installation"
"""Contenders: processes that find no machine code on disk, and so compile it; and `--beside`."""

ROWS = (
    "imports", "torch's store", "meeting", "memory", "machine code", "the rest of the group", "plan",
    "the rest of the call",
)  # fmt: skip
_RANK = Path(__file__).with_name("first_call_rank.py")
_LIMIT_S = 300

_HOW = """\
Two processes on one host, each with `import torch` behind it, make a group and call `all_reduce` of two numbers. A cell
is processor time of all threads in ms, of the rank that takes more, mostly rank 0, which has torch's store: the median,
and the least in brackets. Where nothing is on disk, one rank compiles, and the other waits for it. Both share the
processors; "wall" is the time from `import torch` to the result, and has the other process's part in it."""


def measure(python: str, backend: str, cache: str | None) -> dict[str, float]:
    """Milliseconds by part, and "wall", of the rank that takes more.

    python: the interpreter of the installation. cache: a folder for machine code.
    """
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    if cache is not None:
        there["UNISONO_CACHE_DIR"] = cache
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ranks = [
        subprocess.Popen(
            [python, str(_RANK), backend],
            env={**environment, **there, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=_LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return max(map(json.loads, said), key=processor_ms)


def processor_ms(spent: Mapping[str, float]) -> float:
    """All parts together."""
    return sum(figure for name, figure in spent.items() if name != "wall")


def first_call_markdown(machine: Mapping[str, str], results: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    """The report. results: by contender, the milliseconds of each turn by part."""
    rows = []
    for part in (*ROWS, "all", "wall"):
        cells = []
        for turns in results.values():
            if part == "all":
                figures = [*map(processor_ms, turns)]
            else:
                figures = [turn.get(part, 0.0) for turn in turns]
            cells.append(in_ms([figure / 1e3 for figure in figures]) if any(figures) else "")
        rows.append([part, *cells])
    return [*head("The first call of a fresh process", machine, _HOW), *table(["", *results], rows)]


def bench_first_call(
    *,
    turns: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 20,
    first: Annotated[int, typer.Option(min=0, help="How many turns find nothing on disk.")] = 2,
    beside: Annotated[str, typer.Option(help="The Python of another installation of unisono, such as an older.")] = "",
    named: Annotated[str, typer.Option(help="What the report calls it.")] = OTHER,
    output: Output = None,
) -> None:
    """Measure the first group and the first call of two processes on this host, beside Gloo."""
    machine = describe()
    results: dict[str, list[dict[str, float]]] = {GLOO: []}
    with ExitStack() as stack:
        for _ in range(first):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            results.setdefault(FIRST, []).append(measure(sys.executable, "unisono", folder))
        for turn in range(turns + 1):  # the first turn brings files into memory
            found = {GLOO: measure(sys.executable, "gloo", None)}
            if beside:
                found[named] = measure(beside, "unisono", None)
            found[OURS] = measure(sys.executable, "unisono", None)
            if turn:
                for who, spent in found.items():
                    results.setdefault(who, []).append(spent)
    hand_in(first_call_markdown(machine, results), output)


if __name__ == "__main__":
    typer.run(bench_first_call)
