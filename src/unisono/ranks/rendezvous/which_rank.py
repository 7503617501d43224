"""Which rank this process is, read from arguments and environment variables only; `launchers` reads a launcher's."""

from collections.abc import Mapping

from ...base.errors import ArgumentError
from .launchers import Launch, find_job, has_several_agents, integer, job_at_store, start_of_job

_AT = ("MASTER_ADDR", "MASTER_PORT")


def detect(environ: Mapping[str, str], rank: int | None = None, size: int | None = None) -> Launch:
    """Rank and size: explicit arguments first, then RANK and WORLD_SIZE, then MPI's or Slurm's, else one process alone.

    Raises ArgumentError if sources disagree, if a variable is missing or not a number, and if a launcher has started
    several processes that have no way to meet.
    """
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
        launch = Launch(rank, size, f"rank={rank} and size={size}").checked()
    elif named_rank is not None and named_size is not None:
        launch = Launch(named_rank, named_size, f"RANK={named_rank} and WORLD_SIZE={named_size} are set").checked()
    elif (named_rank, named_size) != (None, None):
        there, missing = ("WORLD_SIZE", "RANK") if named_rank is None else ("RANK", "WORLD_SIZE")
        raise ArgumentError(f"{there}={environ[there]} is set, but {missing} is not. Set both, or unset {there}.")
    elif (job := find_job(environ)) is not None:
        return _by_job(job, environ)
    else:
        why = "there are no arguments, and neither RANK and WORLD_SIZE nor a launcher's variables are set"
        return Launch(0, 1, why)
    return launch if launch.size == 1 else _by_store(launch, environ)


def _by_job(job: Launch, environ: Mapping[str, str]) -> Launch:
    there = [name for name in _AT if name in environ]
    if job.size == 1:
        return job
    if len(there) == 1:
        missing = _AT[_AT.index(there[0]) - 1]
        raise ArgumentError(
            f"{there[0]}={environ[there[0]]} is set, but {missing} is not. Set both, to where all ranks meet, or "
            f"unset {there[0]}."
        )
    if there and job.size:
        return _by_store(Launch(job.rank, job.size, job.why), environ)
    if job.refusal:
        raise ArgumentError(f"{job.why}, but {job.refusal}")
    return job


def _by_store(launch: Launch, environ: Mapping[str, str]) -> Launch:
    port = integer(environ, "MASTER_PORT")
    if "MASTER_ADDR" not in environ or port is None:
        job = find_job(environ)
        if job is not None and (job.rank, job.size) == (launch.rank, launch.size):
            return _by_job(job, environ)
        raise ArgumentError(
            f"{launch.why}, but MASTER_ADDR and MASTER_PORT, where the ranks meet, are not both set. Start the script "
            "with torchrun, or use unisono.run(), which needs neither."
        )
    if not 0 <= port < 1 << 16:
        raise ArgumentError(f"MASTER_PORT: got {port}, expected at most {(1 << 16) - 1}")
    launch = launch._replace(address=environ["MASTER_ADDR"], port=port, name=job_at_store(environ, launch.size))
    start = start_of_job(environ)
    if not start:
        return launch
    return launch._replace(store_runs=True, prefix=f"unisono/{start}", stale=has_several_agents(environ))
