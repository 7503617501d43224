"""The Python stack of a rank of a job, asked for from outside, and the user's part of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...base.user_code import PACKAGE, TORCH, is_users
from ...engine.memory.arena import Arena
from ...engine.process.stacks import ask_for_stacks

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
    return stack_of_process(board.pid, board.ticks, arena.wait_status(rank).stacks)


def stack_of_process(pid: int, ticks: int, number: int) -> Stack:
    """The stack of a process; see `ask_for_stacks`."""
    answer = ask_for_stacks(pid, ticks, number)
    if not answer.threads:
        return Stack("", [f"  no stack: {answer.silent}"])
    line, frames = shown(answer.threads)
    return Stack(line, frames.splitlines() or answer.threads[0])
