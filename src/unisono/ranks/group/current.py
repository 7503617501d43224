"""The default group of this process, which calls without a group use."""

from __future__ import annotations

from .group import Group

default: Group | None = None
_of_run = False
_job = ""


def get_default() -> Group | None:
    """The default group of this process, or None."""
    return default


def set_default(group: Group | None) -> None:
    global default  # noqa: PLW0603  a process has one default group
    default = group


def is_initialized() -> bool:
    """Has this process a default group?"""
    return default is not None


def join_run(group: Group, job: str) -> None:
    """Make this the default group of a process that is a rank of `run` or of a world.

    job: the name of the run, for `grow`.
    """
    global _of_run, _job
    _of_run, _job = True, job
    set_default(group)


def is_rank_of_run() -> bool:
    """Is this process a rank of `run` or of a world?"""
    return _of_run


def get_job() -> str:
    """The name of this rank's run, for `grow`; empty if this process is no rank of a run."""
    return _job
