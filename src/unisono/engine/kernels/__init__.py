"""The functions that Numba compiles: integers in, an integer out. Called by name: `kernel("interpret.run")`.

The first call after an installation compiles them. Only then Python imports the other files of this folder; it always
imports `ring_buffer`. Kernels and Python code share constants by `program`, `rank_logs`, `ring_buffer`
and `base.linux`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from ...base.python import make_once
from ..machine_code import Unit, entry_point

__all__ = ["kernel", "unit"]

_FOLDER = Path(__file__).parent
_SHARED = "compile/program.py", "logs/rank_logs.py", "../base/linux.py"
SOURCES = (*(path for path in _FOLDER.iterdir() if path.suffix == ".py"), *(_FOLDER.parent / file for file in _SHARED))
"""All files that the code of these functions depends on."""


@make_once
def kernel(name: str) -> Callable[..., int]:
    """A function of a file in this folder, `file.function`, as machine code; compiled if it is not on disk."""
    return entry_point(unit(name))


def unit(name: str) -> Unit:
    """Where the machine code of a function is kept."""
    return Unit(name, SOURCES, lambda: _compile(name))


def _compile(name: str) -> bytes:
    from .compiled import object_file

    file, function = name.split(".")
    return object_file(name, getattr(import_module(f".{file}", __name__), function))
