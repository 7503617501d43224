"""How long proofs take, and how long a program takes to start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from unisono.schedule import prove, prove_symmetric, trace_symmetric
from unisono.schedule.algorithms import CATALOGUE, all_gather, all_reduce

EXTRAS = ("proof", "start")

_MOST_RANKS = 16
"""Up to here a schedule is proved exactly before its first run, so the proof must not be felt."""

_FIRST_CALL = """
import time, torch
began = time.process_time()
import unisono
tensor = torch.ones(1000)
unisono.all_reduce(tensor)
if tensor[0] != 2:
    raise SystemExit("wrong")
print(time.process_time() - began)
"""
"""What each of two processes runs, as torchrun would start it: prints its processor time after importing torch."""

Extras = Mapping[str, Any]
"""Seconds, of those that were measured.

proof: the slowest proof of the catalogue's schedules, that of `proof_name`. ring: the proof of the ring all_reduce at
65,536 ranks. first_call: two processes from their start to their end, with one all_reduce and nothing compiled yet.
later: processor time of the slower of them afterwards, from when torch is imported. run_ratio: how long a program takes
whose `run` starts four ranks, in times of one that imports torch.
"""


def measure_extras(parts: Collection[str]) -> Extras:
    return {**(_start() if "start" in parts else {}), **(_proofs() if "proof" in parts else {})}


def _start() -> Extras:
    """The best of three, but for the first call, of which there is one. Compiled code goes to an empty folder."""
    with tempfile.TemporaryDirectory() as cache:
        first = _seconds(lambda: _run(_FIRST_CALL, cache, ranks=2))
        later = min(max(map(float, _run(_FIRST_CALL, cache, ranks=2))) for _ in range(3))
        run, alone = (
            min(_seconds(partial(_run, program, cache)) for _ in range(3))
            for program in ("import unisono; unisono.run(int, ranks=4)", "import torch")
        )
    return {"first_call": first, "later": later, "run_ratio": run / alone}


def _run(program: str, cache: str, ranks: int = 1) -> list[str]:
    """Run a program in as many processes, which are ranks if there are several; what each has printed."""
    environ = os.environ | {"UNISONO_CACHE_DIR": cache}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # Python keeps bytecode, as it does for users
    with socket.create_server(("127.0.0.1", 0)) as probe:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{probe.getsockname()[1]}", "WORLD_SIZE": f"{ranks}"}
    whos = [place | {"RANK": f"{rank}"} for rank in range(ranks)] if ranks > 1 else [{}]
    command = [sys.executable, "-c", program]
    processes = [subprocess.Popen(command, env=environ | who, stdout=subprocess.PIPE, text=True) for who in whos]
    try:
        printed = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise ChildProcessError(f"a process has failed that ran {program}")
    return printed


def _proofs() -> Extras:
    """The best of three of each schedule."""
    schedules = {name: each.schedule(_MOST_RANKS) for name, each in CATALOGUE.items() if each.allows(_MOST_RANKS)}
    seconds = {name: min(_seconds(partial(prove, each)) for _ in range(3)) for name, each in schedules.items()}
    slowest = max(seconds, key=lambda name: seconds[name])

    def ring() -> None:
        gather = trace_symmetric(all_gather.ring, 65_536, "all_gather")
        prove_symmetric(all_reduce.there_and_back(gather))

    return {"proof": seconds[slowest], "proof_name": slowest, "ring": _seconds(ring)}


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
