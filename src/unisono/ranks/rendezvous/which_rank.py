"""Which rank this process is, read from arguments and environment variables only; `launchers` reads a launcher's."""

from collections.abc import Mapping
from typing import NamedTuple

from ...base.errors import ArgumentError
from .launchers import Job, find_job, has_several_agents, integer, job_at_store, start_of_job

_AT = ("MASTER_ADDR", "MASTER_PORT")


class Launch(NamedTuple):
    """What a process knows about its world before it has met its peers.

    The ranks meet at a key-value store at address:port, or, with `by_mpi` or `job`, elsewhere.

    kind: `arguments`, `torchrun`, `environment`, `single`, or the name of the launcher.
    why: what was found, in words.
    store_runs: the launcher runs the store already.
    prefix: keeps the store's keys of one start apart from other starts, and from other jobs.
    job: if set, rank 0 hands the store out through a Unix socket named after this job.
    by_mpi: rank 0 tells the address of the store by MPI.
    name: the name of the job, for other jobs that come to the same address.
    stale: the store may have notices of an earlier start; see `meetings.enter_meeting`.
    """

    rank: int
    size: int
    kind: str
    why: str
    address: str = ""
    port: int = 0
    store_runs: bool = False
    prefix: str = "unisono"
    job: str = ""
    by_mpi: bool = False
    name: str = ""
    stale: bool = False


def detect(environ: Mapping[str, str], rank: int | None = None, size: int | None = None) -> Launch:
    """Rank and size: explicit arguments first, then RANK and WORLD_SIZE, then MPI's or Slurm's, else one process alone.

    Raises ArgumentError if sources disagree, if a variable is missing or no number, and if a launcher has started
    several processes that have no way to meet.
    """
    if (rank is None) != (size is None):
        raise ArgumentError(f"rank={rank} and size={size}: give both or neither")
    named_rank, named_size = integer(environ, "RANK"), integer(environ, "WORLD_SIZE")
    if (named_rank is None) != (named_size is None):
        there, missing = ("WORLD_SIZE", "RANK") if named_rank is None else ("RANK", "WORLD_SIZE")
        if rank is None:
            raise ArgumentError(f"{there}={environ[there]} is set but {missing} is not: set both, or unset {there}")
    if rank is not None and size is not None:
        for name, given, variable, seen in (
            ("rank", rank, "RANK", named_rank),
            ("size", size, "WORLD_SIZE", named_size),
        ):
            if seen is not None and seen != given:
                raise ArgumentError(
                    f"{name}={given} but {variable}={seen}: leave out the argument, or unset the variable"
                )
        launch = Launch(rank, size, "arguments", f"rank={rank} and size={size} were given")
    elif named_rank is not None and named_size is not None:
        kind = "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "environment"
        launch = Launch(named_rank, named_size, kind, f"RANK={named_rank} and WORLD_SIZE={named_size} are set")
    else:
        job = find_job(environ)
        if job is None:
            why = "there are no arguments, and neither RANK and WORLD_SIZE nor a launcher's variables are set"
            return Launch(0, 1, "single", why)
        return _by_job(Launch(job.rank, job.size, job.launcher, job.why), job, environ)
    if not 0 <= launch.rank < launch.size:
        raise ArgumentError(f"{launch.why}, but a rank is at least 0 and below the size")
    return launch if launch.size == 1 else _by_store(launch, environ)


def _by_job(launch: Launch, job: Job, environ: Mapping[str, str]) -> Launch:
    if job.size == 1:
        return launch
    there = [name for name in _AT if name in environ]
    if len(there) == 1:
        missing = _AT[_AT.index(there[0]) - 1]
        raise ArgumentError(
            f"{there[0]}={environ[there[0]]} is set but {missing} is not: set both, to where all ranks meet, or unset "
            f"{there[0]}"
        )
    if there and job.size:
        return _by_store(launch, environ)
    if job.refusal:
        raise ArgumentError(f"{job.why}, but {job.refusal}")
    if job.address:
        return launch._replace(address=job.address, port=job.port, name=job.everywhere)
    return launch._replace(by_mpi=True) if job.by_mpi else launch._replace(job=job.name)


def _by_store(launch: Launch, environ: Mapping[str, str]) -> Launch:
    port = integer(environ, "MASTER_PORT")
    if "MASTER_ADDR" not in environ or port is None:
        job = find_job(environ)
        if job is not None and (job.rank, job.size) == (launch.rank, launch.size):
            return _by_job(launch, job, environ)
        raise ArgumentError(
            f"{launch.why}, but MASTER_ADDR and MASTER_PORT, where the ranks meet, are not both set: "
            "start the script with torchrun, or use unisono.run(), which needs neither"
        )
    if not 0 <= port < 1 << 16:
        raise ArgumentError(f"MASTER_PORT={port}: the port where the ranks meet is at most {(1 << 16) - 1}")
    launch = launch._replace(address=environ["MASTER_ADDR"], port=port, name=job_at_store(environ, launch.size))
    start = start_of_job(environ)
    if not start:
        return launch
    return launch._replace(store_runs=True, prefix=f"unisono/{start}", stale=has_several_agents(environ))
