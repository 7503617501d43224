"""Find the jobs of this user on this host, and attach to one from outside: its memory is mapped to be read only.

Also find ranks that have no group yet: for which rank each waits, where, and since when.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ...base.errors import ArgumentError, UnisonoError
from ...base.units import format_seconds, plural, ranks_text
from ...engine.memory.arena import Arena
from ...engine.memory.meeting_page import Waiting, waiting_of
from ...engine.process.alive import parent, start_ticks
from .rank_stacks import Stack, stack_of_process

_NAME = "/memfd:unisono (deleted)"


class LiveJob(NamedTuple):
    """The memory of a world, and the processes that have it open: each process with its file descriptor."""

    inode: int
    holders: tuple[tuple[int, int], ...]


def find_jobs(pid: int | None = None) -> list[LiveJob]:
    """The jobs of this user on this host; with `pid`, the jobs of this process and of processes that it has started."""
    found: dict[int, list[tuple[int, int]]] = {}
    for process in sorted(_processes()):
        with suppress(OSError):  # of another user, or gone
            for entry in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    if os.readlink(entry) == _NAME:
                        found.setdefault(entry.stat().st_ino, []).append((process, int(entry.name)))
    return [
        LiveJob(inode, tuple(holders))
        for inode, holders in found.items()
        if pid is None or any(pid in _line_of(holder) for holder, _ in holders)
    ]


def processes_of(pid: int) -> list[int]:
    """A process of this user, and the processes of this user that it has started."""
    return [process for process in sorted(_processes()) if pid in _line_of(process)]


def _processes() -> Iterator[int]:
    me = os.getuid()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and entry.stat().st_uid == me:
                yield int(entry.name)


def _line_of(pid: int) -> Iterator[int]:
    """A process, its parent, and so on."""
    while pid > 1:
        yield pid
        pid = parent(pid)


@contextmanager
def attached(job: LiveJob) -> Iterator[Arena]:
    """Map the memory of a job. Raises ArgumentError if the job has ended, or has another version of unisono."""
    refused: Exception | None = None
    for pid, number in job.holders:
        try:
            fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            refused = error
            continue
        try:
            arena = Arena.attach(fd, to_look=True)
        except UnisonoError:
            os.close(fd)
            raise
        try:
            yield arena
        finally:
            arena.close()
        return
    raise ArgumentError(f"the job of process {job.holders[0][0]} cannot be looked at: {refused}") from refused


def the_job(pid: int | None = None) -> LiveJob:
    """The job of a process, or the only one of this user. Raises ArgumentError if there is none, or more than one."""
    jobs = find_jobs(pid)
    if not jobs:
        raise ArgumentError(_why_none(pid))
    if len(jobs) > 1:
        named = ", ".join(str(job.holders[0][0]) for job in jobs)
        raise ArgumentError(f"there are {plural(len(jobs), 'job')}: name one by a process of it, such as {named}")
    return jobs[0]


def _why_none(pid: int | None) -> str:
    """Why there is no job of a process, or of this user, to look at."""
    if pid is None:
        return "this user has no job on this host that can be looked at: only the user who runs it can"
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid if pid > 0 else None
    except OSError:
        owner = None
    if owner is None:
        return f"there is no process {pid} on this host: name one of the job's; `unisono top` lists the jobs"
    if owner != os.getuid():
        return f"process {pid} is of another user: only the user who runs a job can look at it"
    return f"process {pid} has no job of unisono: name a rank, or what has started it; `unisono top` lists the jobs"


_MOST_NAMED = 8


class MeetingRank(NamedTuple):
    """A process that is in `init()`, or makes the first process group."""

    pid: int
    waiting: Waiting
    stack: Stack

    @property
    def line(self) -> str:
        """The ranks that it waits for, where, and for how long, in words."""
        one = self.waiting
        at = f" at {one.where}" if one.where else ""
        waited_s = format_seconds(max(0.0, (time.monotonic_ns() - one.since_ns) / 1e9))
        return (
            f"rank {one.rank} of {one.size} (pid {self.pid}) has no group yet: for {waited_s} it has waited for "
            f"{ranks_text(one.ranks, _MOST_NAMED)} {one.what}{at}"
        )


def meeting_ranks(pid: int) -> Iterator[MeetingRank]:
    """The ranks without a group among a process and the processes that it has started."""
    for process in processes_of(pid):
        waiting = waiting_of(process)
        if waiting is not None:
            yield MeetingRank(process, waiting, stack_of_process(process, start_ticks(process), waiting.stacks))
