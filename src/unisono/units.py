"""Bytes and seconds, read and written the way people do: `16MiB`, `1.5 µs`."""

from __future__ import annotations

import re
from datetime import timedelta

from .errors import ArgumentError, DTypeError

__all__ = ["format_bytes", "format_seconds", "parse_bytes", "seconds"]

_FACTOR = {
    "": 1, "b": 1,
    "k": 1 << 10, "kib": 1 << 10, "ki": 1 << 10, "kb": 10**3,
    "m": 1 << 20, "mib": 1 << 20, "mi": 1 << 20, "mb": 10**6,
    "g": 1 << 30, "gib": 1 << 30, "gi": 1 << 30, "gb": 10**9,
}  # fmt: skip


def parse_bytes(text: str | int) -> int:
    """`"16MiB"` -> 16777216. KiB, MiB and GiB are powers of 1024; KB, MB and GB powers of 1000; K, M, G mean KiB, ...

    Raises ArgumentError for anything that is not a number of bytes.
    """
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].lower() not in _FACTOR:
        raise ArgumentError(f"{text!r} is not a number of bytes: write it like 4096, 64KiB, 16MiB or 1GB")
    return round(float(match[1]) * _FACTOR[match[2].lower()])


def seconds(timeout: float | timedelta) -> float:
    """A time-out as a number of seconds. Raises DTypeError or ArgumentError for what is none."""
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise DTypeError(f"timeout_s: expected seconds or a timedelta, got {type(timeout).__name__}")
    if timeout != timeout:  # noqa: PLR0124  only NaN differs from itself
        raise ArgumentError("timeout_s: NaN is no time; give seconds, or None for the group's")
    return float(timeout)


def format_bytes(count: float) -> str:
    """16777216 -> `16 MiB`, with three significant digits."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{_three_digits(count / size):g} {unit}"
    return f"{_three_digits(count):g} B"


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def format_seconds(seconds: float) -> str:
    """0.0000015 -> `1.5 µs`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
