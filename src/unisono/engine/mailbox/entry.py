"""Compiled functions, called without a detour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["entry_point"]


def entry_point(function: Any, arguments: int) -> Callable[..., int]:
    """Compile a Numba function of so many integers, or load it from disk.

    The entry point skips the dispatcher's look at argument types, which would cost as much as a small message.
    """
    function.compile(f"int64({', '.join(['int64'] * arguments)})")
    entry: Callable[..., int] = next(iter(function.overloads.values())).entry_point
    return entry
