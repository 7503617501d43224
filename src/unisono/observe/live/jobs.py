"""Find the jobs of this user on this host, and attach to one from outside: its memory is mapped to be read only.

Ask a rank for its Python stack, and show the user's part of it. Also find ranks that have no group yet: for which rank
each waits, where, and since when.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ...base.errors import ArgumentError, UnisonoError
from ...base.units import format_seconds, plural
from ...engine.memory.arena import Arena
from ...engine.process.alive import number_here, parent, start_ticks
from ...engine.process.nested import PACKAGE, TORCH, is_users
from .ask_stacks import ask_for_stacks
from .meeting_page import Waiting, waiting_of

_NAME = "/memfd:unisono (deleted)"

LiveJob = list[tuple[int, int]]
"""The processes that have the memory of a world open, each with its file descriptor."""


def find_jobs(pid: int | None = None) -> list[LiveJob]:
    """The jobs of this user on this host; with `pid`, the jobs of this process and of processes that it has started."""
    found: dict[int, LiveJob] = {}
    for process in sorted(_processes()):
        with suppress(OSError):  # of another user, or gone
            for entry in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    if os.readlink(entry) == _NAME:
                        found.setdefault(entry.stat().st_ino, []).append((process, int(entry.name)))
    return [job for job in found.values() if pid is None or any(pid in _line_of(holder) for holder, _ in job)]


def _processes() -> Iterator[int]:
    import psutil  # ranks do without

    me = os.getuid()
    return (one.pid for one in psutil.process_iter(["uids"]) if one.info["uids"] and one.info["uids"].effective == me)


def _line_of(pid: int) -> Iterator[int]:
    """A process, its parent, and so on."""
    while pid > 1:
        yield pid
        pid = parent(pid)


@contextmanager
def attached(job: LiveJob) -> Iterator[Arena]:
    """Map the memory of a job. Raises ArgumentError if the job has ended, or has another version of unisono."""
    refused: Exception | None = None
    for pid, number in job:
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
    raise ArgumentError(f"cannot read the memory of the job of process {job[0][0]}: {refused}") from refused


def the_job(pid: int | None = None) -> LiveJob:
    """The job of a process, or the only one of this user. Raises ArgumentError if there is none, or more than one."""
    jobs = find_jobs(pid)
    if not jobs:
        raise ArgumentError(_why_none(pid))
    if len(jobs) > 1:
        # What has started several jobs has the memory of each open, and does not tell them apart.
        jobs_of = Counter(pid for job in jobs for pid, _ in job)
        named = ", ".join(str(min((pid for pid, _ in job), key=jobs_of.__getitem__)) for job in jobs)
        raise ArgumentError(f"found {plural(len(jobs), 'job')}. Name one by a process of it, such as {named}.")
    return jobs[0]


def _why_none(pid: int | None) -> str:
    """The reason why no job has this process; None: why this user has no job."""
    if pid is None:
        return "found no job of this user on this host. For ranks in init(), name one by its PID."
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid if pid > 0 else None
    except OSError:
        owner = None
    if owner is None:
        return f"process {pid} does not exist on this host. Name a process of the job."
    if owner != os.getuid():
        return f"process {pid} belongs to another user. Run this as the user who runs the job."
    return f"process {pid} has no unisono job. Name a rank, or the process that has started it."


class MeetingRank(NamedTuple):
    """A process that is in `init()`, or makes the first process group."""

    pid: int
    waiting: Waiting
    stack: "Stack"

    @property
    def line(self) -> str:
        """The ranks that it waits for, where, and for how long, in words."""
        one = self.waiting
        waited_s = format_seconds(max(0.0, (time.monotonic_ns() - one.since_ns) / 1e9))
        return (
            f"rank {one.rank} of {one.size} (pid {self.pid}) has no group yet: for {waited_s} it has waited for "
            f"{one.awaited}"
        )


def meeting_ranks(pid: int) -> Iterator[MeetingRank]:
    """The ranks without a group among a process and the processes that it has started."""
    for process in [one for one in sorted(_processes()) if pid in _line_of(one)]:  # it, and those that it has started
        waiting = waiting_of(process)
        if waiting is not None:
            yield MeetingRank(process, waiting, stack_of_process(process, start_ticks(process), waiting.stacks))


_OF_TORCH = tuple(f'  File "{path}' for path in TORCH)
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?+) in ')


def shown(threads: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The user's line, as file:line, and the stacks to show, of the threads of an `Answer`.

    Threads without a user's frame are left out, if any thread has one. Frames of this package are left out, and frames
    of torch on top of a stack.
    """
    stacks = [stack for stack in map(_outside, threads) if stack]
    lines = [next(filter(None, map(_user_line, stack)), "") for stack in stacks]
    theirs = [stack for stack, line in zip(stacks, lines, strict=True) if line] or stacks[:1]
    said = "\n  in another thread\n".join("\n".join(stack) for stack in theirs)
    return next(filter(None, lines), ""), said


def _outside(thread: Sequence[str]) -> list[str]:
    stack = [line for line in thread if not line.startswith((f'  File "{PACKAGE}', '  File "<'))]
    while stack and stack[0].startswith(_OF_TORCH):
        del stack[0]
    return stack


def _user_line(line: str) -> str:
    """The file:line of a user's frame; otherwise empty."""
    frame = _FRAME.match(line)
    return f"{frame['file']}:{frame['line']}" if frame and is_users(frame["file"]) else ""


class Stack(NamedTuple):
    """Where a rank is.

    line: the line of the user's code, as file:line; empty if it is not known.
    frames: the frames of all threads with user's code, innermost first; or a line that says why there are none.
    """

    line: str
    frames: Sequence[str]


def stack_of(arena: Arena, rank: int) -> Stack:
    """The stack of a rank; the rank itself is asked for it."""
    board = arena.board(rank)
    if not board.pid:
        return Stack("", ["  it has not joined yet"])
    if next(arena.plan_registry(rank).groups(), None) is None:
        return Stack("", ["  no stack: it is on another host, or has left"])
    return stack_of_process(number_here(board.pid, board.ticks), board.ticks, board.stacks)


def stack_of_process(pid: int, ticks: int, number: int) -> Stack:
    """The stack of a process; see `ask_for_stacks`."""
    answer = ask_for_stacks(pid, ticks, number)
    if not answer.threads:
        return Stack("", [f"  no stack: {answer.silent}"])
    line, frames = shown(answer.threads)
    return Stack(line, frames.splitlines() or answer.threads[0])
