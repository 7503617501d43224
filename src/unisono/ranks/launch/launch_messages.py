"""What the parent of a local world and its ranks send each other; `docs/processes.md` draws the messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...base.config import Config

if TYPE_CHECKING:
    from ...schedule import Hosts

STARTED = "started"
"""Rank to parent, once per run: the user's function is loaded and begins now."""


@dataclass(frozen=True)
class SeveralHosts:
    """What ranks of several hosts need to find each other. secret: only they know it. pids: the pids of all ranks."""

    hosts: Hosts
    secret: bytes
    pids: list[int]


@dataclass(frozen=True)
class RankSetup:
    """Parent to rank, once: its rank, and the environment of its process.

    The message carries the descriptors of its host's arena and of the working directory. With several hosts (`span`),
    it also carries the descriptor of a file where ranks tell each other their addresses (torch's FileStore).
    """

    rank: int
    size: int
    config: Config | None
    environ: dict[str, str]
    argv: list[str]
    door: str
    """The name of this world, for `grow`."""
    joins: bool = False
    """Does it take the place of a process that has died?"""
    span: SeveralHosts | None = None


@dataclass(frozen=True)
class Task:
    """Parent to rank, once per run. The payload is the pickled (function, args, kwargs).

    The message carries two descriptors: for standard output and standard error from now on.
    """

    path: list[str]
    """The parent's sys.path: the function may need modules from it."""
    sources: dict[str, tuple[int, float | None, list[str], str]]
    """Source lines that are in no file (notebook cells), in linecache's form, for tracebacks."""


@dataclass(frozen=True)
class Report:
    """How one rank came out of a run. Its payload is the pickled result, the pickled exception, or nothing.

    kind: `returned`, `raised`, `waited` (it raised because a peer did not come), `died`, `stuck`, or `starting` (it has
    not begun the function). The parent writes the last three.
    how: the end of the sentence "rank 2 ...".
    text: the traceback or the stack.
    at_ns: the time on the host's monotonic clock.
    closed: the group of all ranks is closed or broken now.
    """

    rank: int
    kind: str
    how: str
    text: str = ""
    at_ns: int = 0
    closed: bool = False
