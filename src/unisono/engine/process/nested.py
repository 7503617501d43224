"""Whose code runs here? Lines of the user's code for errors, logs and stacks; and calls inside another call.

A signal handler, or code that the garbage collector runs, may make a call inside another call of the same thread. It
runs between any two steps of its thread, also while the thread holds a lock: then the lock would never become free. So
code that finds a lock taken looks up the stack: does a function of its own thread hold it?
"""

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import Any, TypeVar

from ...base.errors import NestedCall


def _origin(name: str) -> str:
    spec = find_spec(name)  # a process that looks at a job from outside needs no torch
    return (spec and spec.origin) or f"{name}/"


PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
"""The folder of this package."""

TORCH = (os.path.dirname(_origin("torch")) + os.sep, _origin("typing_extensions"))
"""Files with frames between the user's line and ours: torch's folder, and the file with the wrapper of its
`@deprecated` functions.
"""

_PYTHON = os.path.dirname(os.__file__) + os.sep
_INSTALLED = tuple(_PYTHON + name for name in ("site-packages", "dist-packages"))


@lru_cache(1024)
def is_users(file: str) -> bool:
    """Is this file the user's, or of a package that the user has installed: not this one, nor torch, nor Python?"""
    if file.startswith((PACKAGE, *TORCH)):
        return False
    return not file.startswith(_PYTHON) or file.startswith(_INSTALLED)


Function = TypeVar("Function", bound=Callable[..., Any])

_INSIDE = (PACKAGE, *TORCH)

_holders: dict[CodeType, str] = {}  # function that holds a lock -> the name of the local variable that owns the lock


def holds(name: str) -> Callable[[Function], Function]:
    """Decorator: this function holds the lock of its local variable of this name, for a part of its time."""

    def register(function: Function) -> Function:
        _holders[function.__code__] = name
        return function

    return register


def check_nested(owner: object, what: str = "") -> None:
    """Raise NestedCall if the code that makes the current call has interrupted a holder of the owner's lock.

    what: the owner in words, if its `str` is not.
    """
    call = sys._getframe(1)  # noqa: SLF001  the documented way to look at one's callers
    while call.f_back is not None and call.f_code.co_filename.startswith(_INSIDE):
        call = call.f_back
    frame = call.f_back
    while frame is not None:
        code = frame.f_code
        name = _holders.get(code) if code.co_filename.startswith(PACKAGE) else None  # a code's hash takes long
        if name is not None and frame.f_locals.get(name) is owner:
            raise NestedCall(what or str(owner), user_line(call, frame), user_line(frame))
        frame = frame.f_back


def user_line(frame: FrameType, end: FrameType | None = None) -> str:
    """The user's line from which this frame was called, as file:line; the outermost line if none is the user's.

    end: the search ends before this caller.
    """
    while frame.f_back is not end and frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def caller() -> str:
    """The line outside this package and torch that made the current call, as file:line."""
    return user_line(sys._getframe(1))  # noqa: SLF001  the documented way to look at one's callers
