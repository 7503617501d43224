"""What of the stacks of another rank is the user's, and worth to be shown."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["shown"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_torch = find_spec("torch")  # who looks at a job from outside does without importing it
_TORCH = os.path.dirname(_torch.origin if _torch and _torch.origin else "torch/") + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep

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
    stack = [line for line in thread if not line.startswith((f'  File "{_PACKAGE}', '  File "<'))]
    while stack and stack[0].startswith(f'  File "{_TORCH}'):
        del stack[0]
    return stack


def _user_line(line: str) -> str:
    """The file:line of a frame that is the user's; otherwise empty."""
    frame = _FRAME.match(line)
    if frame is None or frame["file"].startswith((_PACKAGE, _TORCH)):
        return ""
    if frame["file"].startswith(_PYTHON) and "-packages" not in frame["file"]:
        return ""
    return f"{frame['file']}:{frame['line']}"
