"""Tables as files of other programs: MSCCL's XML and MSCCL++'s JSON in and out, GOAL and Chakra's traces out.

A file that is read is proved, so it is an algorithm like those of the catalogue: calls take its name, and commands
draw, explain and price it.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

from ...base.config import Config
from ...base.errors import ArgumentError
from ...base.link import Link
from ..algorithms.catalogue import Algorithm
from ..proof import prove
from ..simulate import Hardware
from ..table import Schedule
from . import chakra, goal, msccl, mscclpp

__all__ = ["read", "write"]

_MOST_BYTES = 64 << 20
SUFFIXES = {".xml": msccl.read, ".json": mscclpp.read}
"""The ends of the names of files that can be read."""

FORMATS = "msccl", "mscclpp", "goal", "chakra"
"""The formats that can be written."""


def read(path: str | Path) -> Schedule:
    """Read and prove the table in a file of another program.

    The suffix selects the format: `.xml` of MSCCL, `.json` for an execution plan of MSCCL++.

    Args:
        path: The file.

    Returns:
        The table. Its rounds follow from the order of the file's steps.

    Raises:
        ArgumentError: The file cannot be read, or does not have this format.
        AlgorithmError: The algorithm has a deadlock, a race or a wrong result. The message names file, gpu, thread
            block and step.

    Example:
        >>> from unisono.schedule.exchange import read
        >>> read("ring.xml").rounds
        14
    """
    place = Path(path)
    if place.suffix not in SUFFIXES:
        raise ArgumentError(f"{path}: the name of the file must end in {', '.join(SUFFIXES)}")
    try:
        size = place.stat().st_size
        if size > _MOST_BYTES:
            raise ArgumentError(f"{path}: has {size:,} bytes, expected at most {_MOST_BYTES:,}")
        return SUFFIXES[place.suffix](place.read_bytes(), str(path))
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror}") from None


def write(
    schedule: Schedule,
    path: str | Path,
    format: str,  # noqa: A002  as in the command
    *,
    nbytes: int = 16 << 20,
    link: Link | None = None,
) -> list[Path]:
    """Write a table as a file of another program.

    Args:
        schedule: The table.
        path: The file to write. For Chakra, the beginning of the names of the ranks' files: `path.0.et`, ...
        format: "msccl", "mscclpp", "goal" or "chakra".
        nbytes: The size of the vector, for simulators.
        link: The network, for simulators; None means `UNISONO_LINK`.

    Returns:
        The files that were written.

    Raises:
        ArgumentError: The format is unknown, or does not support the table.
        AlgorithmError: The table breaks the contract of its collective.
        OSError: A file cannot be written.

    Example:
        >>> from unisono.schedule.algorithms import CATALOGUE
        >>> from unisono.schedule.exchange import write
        >>> write(CATALOGUE["all_reduce.ring"].schedule(8), "ring.xml", "msccl")
        [PosixPath('ring.xml')]
    """
    files = {Path(f"{path}{end}"): data for end, data in exported(schedule, format, nbytes, link).items()}
    for place, data in files.items():
        place.write_bytes(data)
    return [*files]


def exported(schedule: Schedule, format: str, nbytes: int, link: Link | None) -> dict[str, bytes]:  # noqa: A002
    """The files of a table by the ends of their names; see `write`."""
    if format not in FORMATS:
        raise ArgumentError(f"unknown format {format!r}. Use one of {', '.join(FORMATS)}.")
    prove(schedule)
    if format == "msccl":
        return {"": msccl.write(schedule).encode()}
    if format == "mscclpp":
        return {"": mscclpp.write(schedule).encode()}
    hardware = Hardware(between=link or Config.from_env().link)
    if format == "chakra":
        return chakra.write(schedule, nbytes, hardware)
    return {"": goal.write(schedule, nbytes, hardware).encode()}


def file_algorithm(name: Any) -> Algorithm | None:
    """The algorithm in a file, if a call or a command names one. Raises as `read` does."""
    return _algorithm(name) if isinstance(name, str) and name.endswith(tuple(SUFFIXES)) else None


@lru_cache(maxsize=256)
def _algorithm(path: str) -> Algorithm:
    """A process reads a file once, so its calls of all sizes have one algorithm."""
    table = read(path)
    return Algorithm(table.collective, Path(path).name, table)
