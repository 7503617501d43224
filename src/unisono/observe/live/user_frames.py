"""What of the stacks of another rank is the user's, and worth to be shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...base.user_code import PACKAGE, TORCH, is_users

_OF_TORCH = tuple(f'  File "{path}' for path in TORCH)
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?+) in ')


def shown(threads: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The user's line, as file:line, and the stacks to show, of the threads of an `Answer`.

    Threads without a user's frame are left out, if any has one; so are frames of this package, and those of torch on
    top of a stack.
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
    """The file:line of a frame that is the user's; otherwise empty."""
    frame = _FRAME.match(line)
    return f"{frame['file']}:{frame['line']}" if frame and is_users(frame["file"]) else ""
