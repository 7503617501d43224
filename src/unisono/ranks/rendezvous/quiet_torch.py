"""Torch's warnings, held back while a store is asked: where it has gone, torch prints a backtrace of C++ for each
question, before the error that names the rank.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""Where a user has set it, torch says what it says."""
_ERRORS = 2

_lock = threading.Lock()
_asking = 0
"""How many threads ask a store."""
_before = _ERRORS


def _in_child() -> None:
    """The other threads of the parent ask nothing here."""
    global _lock, _asking  # noqa: PLW0603
    _lock = threading.Lock()
    if _asking and (level := _level()) is not None:
        _asking, level.value = 0, _before


os.register_at_fork(after_in_child=_in_child)


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Torch prints errors only, in all threads of this process."""
    level = _level()
    if level is None:
        yield
        return
    _count(level, 1)
    try:
        yield
    finally:
        _count(level, -1)


def _count(level: ctypes.c_int, more: int) -> None:
    """Threads begin or end asking; the first finds the level as it was, and the last leaves it so."""
    global _asking, _before  # noqa: PLW0603  torch has one level per process
    with _lock:
        if not _asking:
            _before = level.value
        _asking += more
        level.value = max(_before, _ERRORS) if _asking else _before


@cache
def _level() -> ctypes.c_int | None:
    """Torch's own level, below which it prints nothing; None where it is not to be changed, or cannot be found."""
    import torch

    try:
        core = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        return None if _LEVEL in os.environ else ctypes.c_int.in_dll(core, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None
