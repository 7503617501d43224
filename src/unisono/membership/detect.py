"""Who started this process, and which rank it is: read from arguments and environment, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ArgumentError

__all__ = ["Launch", "detect"]


@dataclass(frozen=True)
class Launch:
    """What a process knows about its world before it has met its peers.

    `kind` is `arguments`, `torchrun`, `environment` or `single`, and `why` says in words what was seen. Where size is
    more than one, the ranks meet at a key-value store at address:port; `store_runs` says that the launcher already
    runs it, and `prefix` keeps the keys of one start apart from those of the next.
    """

    rank: int
    size: int
    kind: str
    why: str
    address: str = ""
    port: int = 0
    store_runs: bool = False
    prefix: str = "unisono"


def detect(environ: Mapping[str, str], rank: int | None = None, size: int | None = None) -> Launch:
    """Find out rank and size: explicit arguments first, then RANK and WORLD_SIZE, else one process alone.

    Raises ArgumentError where sources disagree or a variable is missing or no number.
    """
    if (rank is None) != (size is None):
        raise ArgumentError(f"rank={rank} and size={size}: give both or neither")
    seen_rank, seen_size = _integer(environ, "RANK"), _integer(environ, "WORLD_SIZE")
    if rank is not None and size is not None:
        for name, given, seen in (("rank", rank, seen_rank), ("size", size, seen_size)):
            if seen is not None and seen != given:
                variable = "RANK" if name == "rank" else "WORLD_SIZE"
                raise ArgumentError(
                    f"{name}={given} but {variable}={seen}: leave out the argument, or unset the variable"
                )
        kind, why = "arguments", f"rank={rank} and size={size} were given"
    elif seen_rank is not None and seen_size is not None:
        rank, size = seen_rank, seen_size
        kind = "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "environment"
        why = f"RANK={rank} and WORLD_SIZE={size} are set"
    elif seen_rank is None and seen_size is None:
        return Launch(0, 1, "single", "there are no arguments, and RANK and WORLD_SIZE are not set")
    else:
        there, missing = ("WORLD_SIZE", "RANK") if seen_rank is None else ("RANK", "WORLD_SIZE")
        raise ArgumentError(f"{there}={environ[there]} is set but {missing} is not: set both, or unset {there}")
    if not 0 <= rank < size:
        raise ArgumentError(f"{why}, but a rank is at least 0 and below the size")
    if size == 1:
        return Launch(rank, size, kind, why)
    port = _integer(environ, "MASTER_PORT")
    if "MASTER_ADDR" not in environ or port is None:
        raise ArgumentError(
            f"{why}, but MASTER_ADDR and MASTER_PORT, where the ranks meet, are not both set: "
            "start the script with torchrun, or use unisono.run(), which needs neither"
        )
    return Launch(
        rank,
        size,
        kind,
        why,
        environ["MASTER_ADDR"],
        port,
        environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        f"unisono/{environ.get('TORCHELASTIC_RUN_ID', 'none')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
    )


def _integer(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    try:
        return None if text is None else int(text)
    except ValueError as error:
        raise ArgumentError(f"{name}={text!r} is not a whole number") from error
