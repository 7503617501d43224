"""Numba functions of integers: kept on disk as machine code, and called without Numba's dispatcher."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from numba import njit

__all__ = ["INLINED", "checksum", "compiled", "entry_point", "on_disk"]

INLINED = ("atomics", "program", "waiting")
"""The files of this folder whose functions and constants become part of compiled functions in other files."""


def checksum(paths: Iterable[Path]) -> int:
    """A checksum of the contents of files."""
    return zlib.crc32(b"".join(path.read_bytes() for path in paths))


_INLINED_CHECKSUM = checksum(Path(__file__).with_name(f"{name}.py") for name in INLINED)


def compiled(function: Callable[..., Any]) -> Any:
    """Decorator: `njit` with a cache on disk that is renewed whenever one of the files INLINED changes.

    Numba itself only looks at the file in which a function is defined. It names the cache after `__qualname__`.
    """
    function.__qualname__ += f".{_INLINED_CHECKSUM:08x}"
    return njit(nogil=True, cache=True)(function)


def entry_point(function: Any) -> Callable[..., int]:
    """Compile a function that `compiled` has decorated, whose arguments and result are int64, or load it from disk.

    The result skips the dispatcher's look at argument types, which would cost as much as a small call.
    """
    function.compile(f"int64({', '.join(['int64'] * function.py_func.__code__.co_argcount)})")
    entry: Callable[..., int] = next(iter(function.overloads.values())).entry_point
    return entry


def on_disk(function: Any) -> bool:
    """Whether the machine code of a function is on disk."""
    folder, python = function.stats.cache_path, function.py_func
    start = f"{python.__module__.rpartition('.')[2]}.{python.__qualname__}-"
    return folder is not None and any(name.startswith(start) and name.endswith(".nbi") for name in os.listdir(folder))
