"""mpirun over several hosts: rank 0 tells the others by MPI where to meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.mpi_launchers import LAUNCHERS, launcher, mpirun

Clusters = Callable[[str], Cluster]

SCRIPT = """
import sys
from mpi4py import MPI
import torch, unisono
group = unisono.init(timeout_s=100)
total = torch.full((3,), 10.0 ** group.rank)
unisono.all_reduce(total)
sys.stdout.write(f"rank {group.rank} on {group.hosts.text}: {total.tolist()}\\n")
sys.stdout.flush()
MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.parametrize("wheel", LAUNCHERS)
def test_mpirun(cluster: Clusters, wheel: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    found = launcher(wheel)
    if found is None:
        pytest.skip(f"the wheel {wheel} is not installed")
    some = cluster("2+1")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = mpirun(wheel, found, some, tmp_path, str(script))
    assert done.returncode == 0, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert said == [f"rank {rank} on 2+1: {[111.0] * 3}" for rank in range(3)]
