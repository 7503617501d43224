"""The Python stack of a rank of a job, asked for from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...engine.memory.arena import Arena
from ...engine.process.stacks import ask_for_stacks
from .user_frames import shown


class Stack(NamedTuple):
    """Where a rank is. line: of the user's code, as file:line; empty if it is not known.

    frames: of all threads with code of the user, innermost first, a line each; or a line that says why there are none.
    """

    line: str
    frames: Sequence[str]


def stack_of(arena: Arena, rank: int) -> Stack:
    """Ask a rank where it is."""
    board = arena.board(rank)
    if not board.pid:
        return Stack("", ["  it has not joined yet"])
    if next(arena.plan_registry(rank).groups(), None) is None:
        return Stack("", ["  no stack: it is on another host, or has left"])
    return stack_of_process(board.pid, board.ticks, arena.wait_status(rank).stacks)


def stack_of_process(pid: int, ticks: int, number: int) -> Stack:
    """The same of a process; see `ask_for_stacks`."""
    answer = ask_for_stacks(pid, ticks, number)
    if not answer.threads:
        return Stack("", [f"  no stack: {answer.silent}"])
    line, frames = shown(answer.threads)
    return Stack(line, frames.splitlines() or answer.threads[0])
