"""Open MPI, MPICH, Slurm and others: the environment variables by which their processes know rank, size and job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ArgumentError

__all__ = ["Job", "find_job", "integer"]


@dataclass(frozen=True)
class Job:
    """The processes that one launcher has started together, and which of them this one is.

    name: the same on all ranks of the job and on no other job of this host; refusal: why the ranks cannot meet, or "".
    """

    launcher: str
    rank: int
    size: int
    why: str
    name: str
    refusal: str


@dataclass(frozen=True)
class _Launcher:
    """One launcher's variables. Where several are named for a fact, the first that is set counts."""

    name: str
    rank: str
    size: tuple[str, ...]
    job: Callable[[Mapping[str, str]], str] | None = None
    """The job's name, or "" where nothing gives it; None: this launcher is known to give none."""
    local_size: str = ""
    nodes: tuple[str, ...] = ()
    needs: str = ""
    """Without this variable the others belong to an enclosing allocation, and launch nothing."""


_MPICH_MANAGERS = {"hydra_pmi_proxy", "mpiexec.gforker"}
"""The processes that start ranks, by their names in /proc."""


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if name in environ), "")


def _open_mpi_job(environ: Mapping[str, str]) -> str:
    return _first(environ, ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"))


def _slurm_job(environ: Mapping[str, str]) -> str:
    return f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}" if "SLURM_JOB_ID" in environ else ""


def _mpich_job(_environ: Mapping[str, str]) -> str:
    """Process id and start time of the nearest ancestor that is MPICH's: it gives its processes no job's name."""
    pid = os.getppid()
    while pid > 1:
        try:
            command, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            return ""
        fields = rest.split()  # state, parent, ...; the start is the 22nd field of the file, the 20th here
        if command in _MPICH_MANAGERS:
            return f"{pid}.{fields[19]}"
        pid = int(fields[1])
    return ""


_LAUNCHERS = (
    _Launcher(
        "Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), _open_mpi_job, "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    _Launcher("MPICH", "PMI_RANK", ("PMI_SIZE",), _mpich_job, "MPI_LOCALNRANKS"),
    _Launcher(
        "Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), _slurm_job,
        nodes=("SLURM_STEP_NUM_NODES", "SLURM_NNODES"), needs="SLURM_STEP_ID",
    ),
    _Launcher("MVAPICH2", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",)),
    _Launcher("Flux", "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",)),
    _Launcher("jsrun", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",)),
    _Launcher("a PMIx launcher", "PMIX_RANK", ()),
)  # fmt: skip
"""In order of precedence: processes of an inner launcher inherit the outer one's variables, and Slurm is outermost."""

_OTHERWISE = "Start the script with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every process."


def find_job(environ: Mapping[str, str]) -> Job | None:
    """The job that has started this process, as its launcher's variables tell; None where no launcher has.

    Where several launchers have set variables, the first one counts; another that agrees with it on rank and size may
    know where to meet when the first does not (srun sets MPICH's variables, too).
    """
    jobs = [job for launcher in _LAUNCHERS if (job := _job(launcher, environ)) is not None]
    agreed = [job for job in jobs if (job.rank, job.size) == (jobs[0].rank, jobs[0].size)]
    return next((job for job in agreed if not job.refusal), jobs[0] if jobs else None)


def _job(launcher: _Launcher, environ: Mapping[str, str]) -> Job | None:
    rank = integer(environ, launcher.rank)
    if rank is None or (launcher.needs and launcher.needs not in environ):
        return None
    variable = next((name for name in launcher.size if name in environ), "")
    size = integer(environ, variable)
    why = f"{launcher.name} has set {launcher.rank}={rank}" + (f" and {variable}={size}" if variable else "")
    if size is None:
        refusal = f"no variable says how many processes there are. {_OTHERWISE}"
        return Job(launcher.name, rank, 0, why, "", refusal)
    if not 0 <= rank < size:
        raise ArgumentError(f"{why}, but a rank is at least 0 and below the size")
    name = launcher.job(environ) if launcher.job else ""
    return Job(launcher.name, rank, size, why, f"{launcher.name} {name}", _refusal(launcher, environ, size, name))


def _refusal(launcher: _Launcher, environ: Mapping[str, str], size: int, name: str) -> str:
    local, nodes = integer(environ, launcher.local_size), _first(environ, launcher.nodes)
    if local not in (None, size):
        return f"only {local} of the {size} ranks run on this host, and a group's ranks share the memory of one host"
    if nodes not in ("", "1"):
        return f"the {size} ranks run on {nodes} hosts, and a group's ranks share the memory of one host"
    return "" if name else f"nothing in the environment tells these processes where to meet. {_OTHERWISE}"


def integer(environ: Mapping[str, str], name: str) -> int | None:
    """The whole number that a variable holds; None where it is not set. Raises ArgumentError."""
    text = environ.get(name)
    try:
        return None if text is None else int(text)
    except ValueError as error:
        raise ArgumentError(f"{name}={text!r} is not a whole number") from error
