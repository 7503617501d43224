"""Numbers as text: bytes (`16 MiB`, and back), seconds (`1.5 µs`), counts (`2 rounds`), ranks (`ranks 1, 2`).

Also checks of arguments that are numbers or names.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from .errors import ArgumentError, DTypeError

_BINARY = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_DECIMAL = {"GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1}

_UNITS = {
    "": "B", "b": "B",
    "k": "KiB", "ki": "KiB", "kib": "KiB", "kb": "KB",
    "m": "MiB", "mi": "MiB", "mib": "MiB", "mb": "MB",
    "g": "GiB", "gi": "GiB", "gib": "GiB", "gb": "GB",
}  # fmt: skip
"""What a user may write, in small letters -> the unit that it means."""


def _number_and_unit(text: str) -> tuple[str, str]:
    """`"1gb"` -> `("1", "GB")`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].lower() not in _UNITS:
        raise ArgumentError(f"got {text!r}, expected a number of bytes, such as 4096, 64KiB, 16MiB or 1GB")
    return match[1], _UNITS[match[2].lower()]


def parse_bytes(text: str | int) -> int:
    """`"16MiB"` -> 16777216. KiB, MiB and GiB are powers of 1024; KB, MB and GB powers of 1000; K, M, G mean KiB, ...

    Raises ArgumentError for anything that is not a number of bytes.
    """
    if isinstance(text, int):
        return text
    number, unit = _number_and_unit(text)
    nbytes = float(number) * (_BINARY | _DECIMAL)[unit]
    if nbytes == math.inf:
        raise ArgumentError(f"got {text[:40]!r}, which is too many bytes")
    return round(nbytes)


def integer(argument: str, value: Any, what: str = "an integer") -> int:
    """An integer of Python or NumPy as an int. Raises DTypeError, which names the argument, for others, also bools."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise DTypeError(f"{argument}: got {type(value).__name__}, expected {what}")


def text(argument: str, value: Any) -> str:
    """A name that UTF-8 can encode. Raises DTypeError or ArgumentError, which name the argument, for others."""
    if not isinstance(value, str):
        raise DTypeError(f"{argument}: got {type(value).__name__}, expected a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ArgumentError(
            f"{argument}: got {value!r}, which has a surrogate. Use text that UTF-8 can encode."
        ) from None
    return value


def seconds(timeout: float | timedelta, argument: str = "timeout_s", *, positive: bool = False) -> float:
    """A time that a user gave, as a number of seconds. All public calls check theirs by this function.

    argument: its name, for errors. positive: 0 is refused, too.

    Raises DTypeError for another type than a number or a timedelta, ArgumentError for NaN and for less than 0.
    """
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise DTypeError(f"{argument}: got {type(timeout).__name__}, expected seconds or a timedelta")
    if not (timeout > 0 or (timeout == 0 and not positive)):  # NaN is neither
        least = "more than 0 seconds" if positive else "0 seconds or more"
        raise ArgumentError(f"{argument}: got {timeout:g}, expected {least}, or float('inf') for no limit")
    return float(timeout) if timeout < sys.float_info.max else math.inf  # an int may be greater


def format_bytes(count: float, like: str = "") -> str:
    """16777216 -> `16 MiB`, with three significant digits.

    like: a size as a user gave it, such as "1GB". This very size is returned as given, `1 GB`, and any other count in
    powers of 1000 if `like` is. Raises ArgumentError if `like` is not a number of bytes.
    """
    units = _BINARY
    if like:
        number, given = _number_and_unit(like)
        if count == parse_bytes(like):
            return f"{number} {given}"
        units = _BINARY if given in _BINARY else _DECIMAL
    unit = next((unit for unit, size in units.items() if count >= size), "B")
    return f"{float(f'{count / units[unit]:.3g}'):g} {unit}"


def format_seconds(seconds: float) -> str:
    """0.0000015 -> `1.5 µs`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def plural(count: int, noun: str) -> str:
    """1, "round" -> `1 round`; 2, "round" -> `2 rounds`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def ranks_text(ranks: Iterable[int], most: int | None = None) -> str:
    """[1] -> `rank 1`; [1, 2] -> `ranks 1, 2`; of more than `most`, `ranks 1, 2 and 7 more`."""
    every = list(ranks)
    named = ", ".join(map(str, every[:most]))
    more = f" and {len(every) - most} more" if most is not None and len(every) > most else ""
    return f"rank{'' if len(every) == 1 else 's'} {named}{more}"
