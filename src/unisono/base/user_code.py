"""Does a source file belong to the user? Errors, logs and stacks name lines of the user's code."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec


def _origin(name: str) -> str:
    spec = find_spec(name)  # a process that looks at a job from outside needs no torch
    return (spec and spec.origin) or f"{name}/"


PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The folder of this package."""

TORCH = (
    os.path.dirname(_origin("torch")) + os.sep,
    _origin("typing_extensions"),
    os.path.join(os.path.dirname(_origin("ray")), "util", "collective", ""),
)
"""Files with frames between the user's line and ours: torch's folder, the file with the wrapper of its `@deprecated`
functions, and Ray's calls.
"""

_PYTHON = os.path.dirname(os.__file__) + os.sep
_INSTALLED = tuple(_PYTHON + name for name in ("site-packages", "dist-packages"))


@lru_cache(1024)
def is_users(file: str) -> bool:
    """Is this file the user's, or of a package that the user has installed: not this one, nor torch, nor Python?"""
    if file.startswith((PACKAGE, *TORCH)):
        return False
    return not file.startswith(_PYTHON) or file.startswith(_INSTALLED)
