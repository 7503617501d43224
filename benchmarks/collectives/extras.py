"""How long a program takes to start."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial

from tests.support.ports import free_port

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

Extras = Mapping[str, float]
"""Seconds, of those that were measured.

first_call: two processes from their start to their end, with one all_reduce and nothing compiled yet.
later: processor time of the slower of them afterwards, from when torch is imported. run_ratio: how long a program takes
whose `run` starts four ranks, in times of one that imports torch.
"""


def measure_start() -> Extras:
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
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{free_port()}", "WORLD_SIZE": f"{ranks}"}
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


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
