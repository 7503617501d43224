"""What the parent of a local world and its ranks tell each other."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config

__all__ = ["Report", "Seat", "Task"]


@dataclass(frozen=True)
class Seat:
    """Parent to rank, once: which rank it is and what its process should look like.

    With it travel three descriptors: the arena, the pipe for stacks, and the working directory.
    """

    rank: int
    size: int
    config: Config | None
    environ: dict[str, str]
    argv: list[str]


@dataclass(frozen=True)
class Task:
    """Parent to rank, once per run. The cargo is the packed (function, args, kwargs).

    With it travel two descriptors: where standard output and standard error go from now on.
    """

    path: list[str]
    """The parent's sys.path: the function may need modules from it."""
    sources: dict[str, tuple[int, float | None, list[str], str]]
    """Source lines that are in no file (notebook cells), in linecache's form, for tracebacks."""


@dataclass(frozen=True)
class Report:
    """How one rank came out of a run. Its cargo is the packed result, or the packed exception, or nothing.

    `kind` is `returned`, `raised`, `waited` (it raised because a peer did not come), `died` or `stuck`; the last
    two are written by the parent. `how` is the end of the sentence "rank 2 ...", `text` the traceback or the stack,
    `at_ns` the time on the host's monotonic clock. `closed`: the function has closed the group of all ranks.
    """

    rank: int
    kind: str
    how: str
    text: str = ""
    at_ns: int = 0
    closed: bool = False
