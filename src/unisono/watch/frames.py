"""Whose frames are whose: the user's line among one's own callers, and in the stacks of another rank."""

from __future__ import annotations

import os
import re
import sys

import torch

__all__ = ["INSIDE", "caller", "shown"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep

INSIDE = (_PACKAGE, _TORCH)
"""Frames of these folders are not the user's: this package, and torch, which may call it."""

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?+) in ')


def caller() -> str:
    """The line outside this package and torch that made the current call, as file:line."""
    frame = sys._getframe(1)  # noqa: SLF001  the documented way to look at one's callers
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def shown(text: str) -> tuple[str, str]:
    """The user's line, as file:line, and the stacks to show, of what `faulthandler` has written of all threads.

    Threads without a user's frame are left out, if any has one; so are frames of this package, and those of torch on
    top of a stack.
    """
    stacks = [stack for stack in map(_outside, _threads(text)) if stack]
    lines = [next(filter(None, map(_user_line, stack)), "") for stack in stacks]
    theirs = [stack for stack, line in zip(stacks, lines, strict=True) if line] or stacks[:1]
    said = "\n  in another thread\n".join("\n".join(stack) for stack in theirs)
    return next(filter(None, lines), ""), said


def _threads(text: str) -> list[list[str]]:
    """The frames of each thread, the thread that answered first. The text may have several answers: of the last one."""
    found: dict[str, list[str]] = {}
    current = ""
    for line in text.splitlines():
        if line.startswith(("Thread 0x", "Current thread 0x")):
            thread = line[line.index("0x") :].split()[0]
            if thread in found:
                found = {}
            found[thread] = []
            current = thread if line.startswith("C") else current
        elif line.startswith("  ") and found:
            next(reversed(found.values())).append(line)
    return [found[thread] for thread in sorted(found, key=lambda thread: thread != current)]


def _outside(stack: list[str]) -> list[str]:
    stack = [line for line in stack if not line.startswith((f'  File "{_PACKAGE}', '  File "<'))]
    while stack and stack[0].startswith(f'  File "{_TORCH}'):
        del stack[0]
    return stack


def _user_line(line: str) -> str:
    """The file:line of a frame that is the user's; otherwise empty."""
    frame = _FRAME.match(line)
    if frame is None or frame["file"].startswith(INSIDE):
        return ""
    if frame["file"].startswith(_PYTHON) and "-packages" not in frame["file"]:
        return ""
    return f"{frame['file']}:{frame['line']}"
