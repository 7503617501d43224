"""How long proofs take, and how long a program takes to start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from unisono.base.errors import PeerFailed, WaitTimeout
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


@dataclass(frozen=True)
class Extras:
    """Seconds; None where nothing was measured.

    proof_s: the slowest proof of the catalogue's schedules, which `proof_name` names. ring_s: the proof of the ring
    all_reduce at 65,536 ranks. first_call_s: two processes from their start to their end, with one all_reduce and
    nothing compiled yet. later_s: processor time of the slower of them afterwards, from when torch is imported.
    run_ratio: how long a program takes whose `run` starts four ranks, in times of one that imports torch.
    """

    proof_s: float | None = None
    proof_name: str = ""
    ring_s: float | None = None
    first_call_s: float | None = None
    later_s: float | None = None
    run_ratio: float | None = None


def measure_extras(parts: Collection[str]) -> Extras:
    """Measure those of EXTRAS that are in `parts`."""
    figures: dict[str, float | str] = {}
    if "start" in parts:
        figures |= _start()
    if "proof" in parts:
        figures |= _proofs()
    return Extras(**figures)  # type: ignore[arg-type]


def _start() -> dict[str, float | str]:
    """The best of three, but for the first call, of which there is one. Compiled code goes to an empty folder."""
    with tempfile.TemporaryDirectory() as cache:
        first = _seconds(lambda: _two_processes(_FIRST_CALL, cache))
        later = min(max(map(float, _two_processes(_FIRST_CALL, cache))) for _ in range(3))
        run, alone = (
            min(_seconds(lambda: _process(program, cache)) for _ in range(3))  # noqa: B023  called at once
            for program in ("import unisono; unisono.run(int, ranks=4)", "import torch")
        )
    return {"first_call_s": first, "later_s": later, "run_ratio": run / alone}


def _environ(cache: str) -> dict[str, str]:
    """Python keeps bytecode, as it does for users, even if this process was told not to."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**environ, "UNISONO_CACHE_DIR": cache}


def _process(program: str, cache: str) -> None:
    subprocess.run([sys.executable, "-c", program], env=_environ(cache), check=True, timeout=60, capture_output=True)


def _two_processes(program: str, cache: str, timeout_s: float = 60.0) -> list[str]:
    """Run a program as ranks 0 and 1; return what each has printed."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    common = {**_environ(cache), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, env={**common, "RANK": rank}, stdout=pipe, stderr=pipe, text=True) for rank in "01"
    ]
    printed = []
    try:
        for process in processes:
            out, said = process.communicate(timeout=timeout_s)
            printed.append(out)
            if process.returncode:
                raise PeerFailed(processes.index(process), said, 0, "a program's start")
    except subprocess.TimeoutExpired as error:
        late = [rank for rank, process in enumerate(processes) if process.poll() is None]
        raise WaitTimeout("a program's start", timeout_s, late, 0) from error
    finally:
        for process in processes:
            process.kill()
    return printed


def _proofs() -> dict[str, float | str]:
    """Each proof's best of three."""
    seconds = {}
    for name, algorithm in CATALOGUE.items():
        if algorithm.allows(_MOST_RANKS):
            schedule = algorithm.schedule(_MOST_RANKS)
            seconds[name] = min(_seconds(lambda: prove(schedule)) for _ in range(3))  # noqa: B023  called at once
    slowest = max(seconds, key=lambda name: seconds[name])

    def ring() -> None:
        gather = trace_symmetric(all_gather.ring, 65_536, "all_gather")
        prove_symmetric(all_reduce.there_and_back(gather))

    return {"proof_s": seconds[slowest], "proof_name": f"({slowest}, the slowest)", "ring_s": _seconds(ring)}


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
