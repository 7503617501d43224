"""What the first group and the first call of a fresh process cost, beside Gloo: `python -m benchmarks.first_call`.

A rank is `python first_call.py BACKEND`. It imports only torch before the clock starts, so this file imports the rest
inside functions.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore

FIRST = "unisono, nothing on disk"
"""It finds no machine code on disk, and so compiles it."""

_HOW = """\
Two ranks of one host. "all" is processor time of all threads of the rank that takes more: mostly rank 0, which has
torch's store. "wall" is the longest elapsed time of any rank. Both run from the moment at which both have imported
torch to the result of an all_reduce. If nothing is on disk, one rank compiles, and the other waits for it."""


def live(backend: str) -> None:
    """Make a group of both ranks and call all_reduce, as one rank."""
    rank, size = int(os.environ["RANK"]), 2
    print("ready", flush=True)
    sys.stdin.readline()
    began, used = time.perf_counter(), time.process_time()
    store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    vector = torch.full((2,), 1.0 + rank)
    distributed.all_reduce(vector)
    spent = {"all": time.process_time() - used, "wall": time.perf_counter() - began}
    if vector.tolist() != [3.0, 3.0]:
        raise RuntimeError(f"1 + 2 is {vector.tolist()}")
    print(json.dumps(spent), flush=True)
    distributed.destroy_process_group()


def measure(backend: str, **environment: str) -> dict[str, float]:
    """The most seconds of either rank."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        given = os.environ | environment | {"MASTER_PORT": str(probe.getsockname()[1])}
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    command, pipe = [sys.executable, __file__, backend], subprocess.PIPE
    ranks: list[Any] = [  # processes with pipes
        subprocess.Popen(command, env=given | {"RANK": f"{rank}"}, stdin=pipe, stdout=pipe, text=True)
        for rank in range(2)
    ]
    try:
        if any(process.stdout.readline() != "ready\n" for process in ranks):
            sys.exit("a rank has not come: standard error says why")
        for process in ranks:
            process.stdin.write("\n")
            process.stdin.flush()
        said: list[dict[str, float]] = [json.loads(one.communicate(timeout=300)[0]) for one in ranks]
    finally:
        for process in ranks:
            process.kill()
    return {part: max(one[part] for one in said) for part in ("all", "wall")}


def bench_first_call(*, turns: int = 10, first: int = 1, output: Path | None = None) -> None:
    """Measure the first group and the first call of two processes, beside Gloo.

    turns: of each contender. first: turns that find nothing on disk.
    """
    from benchmarks.runs import GLOO, OURS, begin, hand_in, of_times

    run = begin("The first call of a fresh process", _HOW)
    found: dict[str, list[dict[str, float]]] = {GLOO: [], FIRST: [], OURS: []}
    for _ in range(first):
        with tempfile.TemporaryDirectory() as folder:
            found[FIRST].append(measure("unisono", UNISONO_CACHE_DIR=folder))
    for turn in range(turns + 1):  # the first turn brings files into memory
        for who in (GLOO, OURS):
            spent = measure(who.lower())
            if turn:
                found[who].append(spent)
    times = {
        part: {who: [turn[part] for turn in each] for who, each in found.items() if each} for part in ("all", "wall")
    }
    run.tables.append(of_times("parts", ["part"], times))
    hand_in(run, output)


if __name__ == "__main__":
    if sys.argv[1:2] in (["gloo"], ["unisono"]):
        live(sys.argv[1])
    else:
        import typer

        typer.run(bench_first_call)
