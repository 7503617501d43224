"""Which rank this process is, and where the ranks meet, read from arguments and environment variables only.

Open MPI, MPICH, Slurm and others have variables by which their processes know rank, size and job.
"""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ...base.errors import ArgumentError
from ...engine.process.alive import parent, start_ticks


class Launch(NamedTuple):
    """What a process knows about its world before it has met its peers.

    The ranks meet at a key-value store at address:port, or, with `by_mpi` or `job`, elsewhere.

    why: what was found, in words.
    store_runs: the launcher runs the store already.
    prefix: keeps the store's keys of one start apart from other starts, and from other jobs.
    job: if set, rank 0 hands the store out through a Unix socket named after this job of this host.
    by_mpi: rank 0 tells the address of the store by MPI.
    name: the name of the job on all hosts, for other jobs that come to the same address.
    stale: the store may have notices of an earlier start; see `meeting.Meeting`.
    refusal: why the ranks cannot meet, or "".
    """

    rank: int
    size: int
    why: str = ""
    address: str = ""
    port: int = 0
    store_runs: bool = False
    prefix: str = "unisono"
    job: str = ""
    by_mpi: bool = False
    name: str = ""
    stale: bool = False
    refusal: str = ""

    def checked(self) -> "Launch":
        """This launch. Raises ArgumentError if the rank is not below the size."""
        if not 0 <= self.rank < self.size:
            raise ArgumentError(f"{self.why}: a rank must be at least 0 and less than the size")
        return self


class _Launcher(NamedTuple):
    """One launcher's variables. If a fact has several, the first that is set counts."""

    name: str
    rank: str
    size: tuple[str, ...]
    job: Callable[[Mapping[str, str]], str] = lambda _environ: ""  # the job's name, or "" if no variable gives it
    local_size: str = ""
    nodes: tuple[str, ...] = ()
    first_node: Callable[[Mapping[str, str]], str] | None = None  # where rank 0 runs; None: only MPI knows
    names_hosts: bool = False  # does the job have another name on each host?
    needs: str = ""
    """Without this variable, the other variables belong to an enclosing allocation, which launches no ranks."""


_MPICH_MANAGERS = {"hydra_pmi_proxy", "mpiexec.gforker"}  # the processes that start ranks, by their names in /proc
_FIRST_PORT, _PORTS = 10_000, 20_000  # ports of jobs are below those that the system gives to outgoing connections


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if name in environ), "")


def _open_mpi_job(environ: Mapping[str, str]) -> str:
    return _first(environ, ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"))


def _slurm_job(environ: Mapping[str, str]) -> str:
    return f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}" if "SLURM_JOB_ID" in environ else ""


def _mpich_job(_environ: Mapping[str, str]) -> str:
    """Process id and start time of the nearest ancestor that is MPICH's, because MPICH gives jobs no name."""
    pid = os.getppid()
    while pid > 1 and (command := Path(f"/proc/{pid}/comm")).exists():
        if command.read_text().strip() in _MPICH_MANAGERS:
            return f"{pid}.{start_ticks(pid)}"
        pid = parent(pid)
    return ""


def _first_node(environ: Mapping[str, str]) -> str:
    """The first host of a list such as `gpu[03-05,9],login1`; "" if rank 0 is known to be on another host."""
    if environ.get("SLURM_PROCID") == "0" and environ.get("SLURM_NODEID", "0") != "0":
        return ""
    nodes = _first(environ, ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    return re.sub(r"\[(\w+)[^]]*\]", r"\1", re.split(r",(?![^[]*\])", nodes)[0])


_LAUNCHERS = (
    _Launcher(
        "Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), _open_mpi_job, "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    _Launcher("MPICH", "PMI_RANK", ("PMI_SIZE",), _mpich_job, "MPI_LOCALNRANKS", names_hosts=True),
    _Launcher(
        "Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), _slurm_job,
        nodes=("SLURM_STEP_NUM_NODES", "SLURM_NNODES"), first_node=_first_node, needs="SLURM_STEP_ID",
    ),
    _Launcher("MVAPICH2", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",)),
    _Launcher("Flux", "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",)),
    _Launcher("jsrun", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",)),
    _Launcher("a PMIx launcher", "PMIX_RANK", ()),
)  # fmt: skip
"""In order of precedence: processes of an inner launcher inherit the outer one's variables, and Slurm is outermost."""

_ADDRESS = "Set MASTER_ADDR, to an address of rank 0's host, and MASTER_PORT for every process."
_OTHERWISE = "Start the script with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every process."


def detect(environ: Mapping[str, str], rank: int | None = None, size: int | None = None) -> Launch:
    """Rank and size: explicit arguments first, then RANK and WORLD_SIZE, then MPI's or Slurm's, else one process alone.

    Raises ArgumentError if sources disagree, if a variable is missing or not a number, and if a launcher has started
    several processes that have no way to meet.
    """
    why = "there are no arguments, and neither RANK and WORLD_SIZE nor a launcher's variables are set"
    launch = _given(environ, rank, size) or find_job(environ) or Launch(0, 1, why)
    if launch.size == 1:
        return launch
    if _both(environ, "MASTER_ADDR", "MASTER_PORT") and launch.size:
        return _at_store(launch, environ)
    job = find_job(environ)
    if job is None or (job.rank, job.size) != (launch.rank, launch.size):
        raise ArgumentError(
            f"{launch.why}, but MASTER_ADDR and MASTER_PORT, where the ranks meet, are not set. Start the script with "
            "torchrun, or use unisono.run(), which needs neither."
        )
    if job.refusal:
        raise ArgumentError(f"{job.why}, but {job.refusal}")
    return job


def _given(environ: Mapping[str, str], rank: int | None, size: int | None) -> Launch | None:
    """Rank and size by arguments, or by RANK and WORLD_SIZE; None: there are neither."""
    if (rank is None) != (size is None):
        raise ArgumentError(f"got rank={rank} and size={size}. Give both or neither.")
    named_rank, named_size = integer(environ, "RANK"), integer(environ, "WORLD_SIZE")
    if rank is not None and size is not None:
        for name, given, variable, seen in (
            ("rank", rank, "RANK", named_rank),
            ("size", size, "WORLD_SIZE", named_size),
        ):
            if seen is not None and seen != given:
                raise ArgumentError(
                    f"{name}: got {given}, but the environment has {variable}={seen}. Leave out the argument, or "
                    "unset the variable."
                )
        return Launch(rank, size, f"rank={rank} and size={size}").checked()
    if not _both(environ, "RANK", "WORLD_SIZE") or named_rank is None or named_size is None:
        return None
    return Launch(named_rank, named_size, f"RANK={named_rank} and WORLD_SIZE={named_size} are set").checked()


def _both(environ: Mapping[str, str], *names: str) -> bool:
    """Are these two variables set? Raises ArgumentError if only one of them is."""
    there, missing = ([name for name in names if (name in environ) == is_there] for is_there in (True, False))
    if there and missing:
        raise ArgumentError(
            f"{there[0]}={environ[there[0]]} is set, but {missing[0]} is not. Set both, or unset {there[0]}."
        )
    return not missing


def _at_store(launch: Launch, environ: Mapping[str, str]) -> Launch:
    """This launch, to meet at MASTER_ADDR and MASTER_PORT."""
    port, start = integer(environ, "MASTER_PORT") or 0, start_of_job(environ)
    if not 0 <= port < 1 << 16:
        raise ArgumentError(f"MASTER_PORT: got {port}, expected at most {(1 << 16) - 1}")
    launch = Launch(launch.rank, launch.size, launch.why, environ["MASTER_ADDR"], port)
    launch = launch._replace(name=job_at_store(environ, launch.size))
    if not start:
        return launch
    return launch._replace(store_runs=True, prefix=f"unisono/{start}", stale=has_several_agents(environ))


def find_job(environ: Mapping[str, str]) -> Launch | None:
    """The launch of this process, by its launcher's variables; None: no launcher has started it.

    If several launchers have set variables, the first one counts. If the first one does not know where to meet, another
    one may, if it has the same rank and size (srun sets MPICH's variables, too).
    """
    jobs = [job for launcher in _LAUNCHERS if (job := _launch(launcher, environ)) is not None]
    agreed = [job for job in jobs if (job.rank, job.size) == (jobs[0].rank, jobs[0].size)]
    return next((job for job in agreed if not job.refusal), jobs[0] if jobs else None)


def start_of_job(environ: Mapping[str, str]) -> str:
    """Which start of its ranks this is, if they meet at the store of torchrun's agent; else "".

    The agent keeps this store when it starts the ranks again, so keys of an earlier start are still there: also under
    this name, if `has_several_agents`.
    """
    return _torchrun_start(environ) if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else ""


def has_several_agents(environ: Mapping[str, str]) -> bool:
    """Have several of torchrun's agents started the ranks, one on each node? Each counts the failures of its own ranks,
    so in one start of all ranks the counts may differ.
    """
    return "TORCHELASTIC_RUN_ID" in environ and environ.get("GROUP_WORLD_SIZE", "1") != "1"


def _torchrun_start(environ: Mapping[str, str]) -> str:
    run = environ.get("TORCHELASTIC_RUN_ID", "none")
    return run if has_several_agents(environ) else f"{run}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def job_at_store(environ: Mapping[str, str], size: int) -> str:
    """The name of a job of `size` ranks at a store where other jobs might meet, too; "" if there is none.

    A launcher that has started another number of processes has not started this job, or only a part of it.
    """
    if "TORCHELASTIC_RUN_ID" in environ:
        return f"torchrun {_torchrun_start(environ)}"
    with suppress(ArgumentError):  # `detect` raises it for the rank
        job = find_job(environ)
        return job.name if job is not None and job.size == size else ""
    return ""


def _launch(launcher: _Launcher, environ: Mapping[str, str]) -> Launch | None:
    rank = integer(environ, launcher.rank)
    if rank is None or (launcher.needs and launcher.needs not in environ):
        return None
    variable = next((name for name in launcher.size if name in environ), "")
    size = integer(environ, variable)
    why = f"{launcher.name} has set {launcher.rank}={rank}" + (f" and {variable}={size}" if variable else "")
    if size is None:
        return Launch(rank, 0, why, refusal=f"no variable has the number of processes. {_OTHERWISE}")
    name = launcher.job(environ)
    everywhere = launcher.name if launcher.names_hosts else f"{launcher.name} {name}".rstrip()
    launch = Launch(rank, size, why, name=everywhere).checked()
    if size == 1:
        return launch
    if integer(environ, launcher.local_size) in (None, size) and _first(environ, launcher.nodes) in ("", "1"):
        if name:
            return launch._replace(job=f"{launcher.name} {name}")
        return launch._replace(refusal=f"the environment does not say where these processes meet. {_OTHERWISE}")
    if launcher.first_node is None:
        return launch._replace(by_mpi=True)
    if node := launcher.first_node(environ):
        number = int(sha256(name.encode(errors="surrogatepass")).hexdigest(), 16)
        return launch._replace(address=node, port=_FIRST_PORT + number % _PORTS)
    return launch._replace(refusal=f"the environment does not say on which host rank 0 runs. {_ADDRESS}")


def integer(environ: Mapping[str, str], name: str) -> int | None:
    """The whole number in a variable; None if it is not set. Raises ArgumentError."""
    text = environ.get(name)
    try:
        return None if text is None else int(text)
    except ValueError as error:
        raise ArgumentError(f"{name}: got {text!r}, expected a whole number") from error
