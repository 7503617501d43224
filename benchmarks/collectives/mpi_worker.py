"""An MPI rank: it reads cells from a socket, measures them on numpy arrays and writes the samples back.

Started by `mpi_job.MpiJob` as `mpiexec -n RANKS python -m benchmarks.collectives.mpi_worker FOLDER`.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..rendezvous import Rendezvous
from .protocol import Cell, measure, shapes


def main(folder: Path) -> None:
    """Serve until the socket is closed."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, ranks = world.Get_rank(), world.Get_size()
    meet = Rendezvous(folder / "meet", rank, ranks)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(folder / "socket"))
        with line.makefile("rw") as talk:
            talk.write(json.dumps([rank, MPI.Get_library_version().strip()]) + "\n")
            talk.flush()
            for text in talk:
                cell = Cell(**json.loads(text))
                n_in, n_out = shapes(cell.op, cell.count, ranks)
                source = np.zeros(n_in, np.float32)
                target = np.zeros(n_out, np.float32) if n_out else source
                sample = measure(meet, cell, source, target, _call(MPI, cell.op, source, target))
                talk.write(json.dumps(dataclasses.asdict(sample)) + "\n")
                talk.flush()


def _call(MPI: Any, op: str, x: Any, y: Any) -> Callable[[], object]:
    world, total, in_place = MPI.COMM_WORLD, MPI.SUM, MPI.IN_PLACE
    return {
        "all_reduce": lambda: world.Allreduce(in_place, x, op=total),
        "broadcast": lambda: world.Bcast(x, 0),
        "all_gather": lambda: world.Allgather(x, y),
        "reduce_scatter": lambda: world.Reduce_scatter_block(x, y, op=total),
        "all_to_all": lambda: world.Alltoall(x, y),
    }[op]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
