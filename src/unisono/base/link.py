"""What a network link between hosts does: how long a message takes at least, and how many bytes pass per second."""

import re
from math import floor, log10
from typing import NamedTuple

from .errors import ArgumentError
from .units import format_seconds

_PART = r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zµ]+)(?:/s)?"

_SECONDS = {"ns": 1 / 10**9, "us": 1 / 10**6, "µs": 1 / 10**6, "ms": 1 / 10**3, "s": 1.0}
_BYTES_PER_S = {
    "kbit": 10**3 / 8, "mbit": 10**6 / 8, "gbit": 10**9 / 8, "kb": 1e3, "mb": 1e6, "gb": 1e9,
}  # fmt: skip
"""Units in small letters. Networks count in powers of 1000: 1 Gbit/s is 125,000,000 bytes per second."""


class Link(NamedTuple):
    """latency_s: the time of a small message between two hosts, from its start to its end.
    bytes_per_s: the bytes per second, each way.

    Both are 0 if they are not known yet: `auto`, for the hosts to measure when they meet.
    """

    latency_s: float = 100e-6
    bytes_per_s: float = 1.25e9

    @classmethod
    def parse(cls, text: str, default: "Link | None" = None) -> "Link":
        """From `1Gbit,100us`, `25Gbit`, `2.5GB,1ms` or the like, or from `auto`. A missing part is that of `default`.

        Raises ArgumentError.
        """
        if text.strip().lower() == "auto":
            return cls(0.0, 0.0)
        found: dict[str, float] = {}
        for part in text.split(","):
            match = re.fullmatch(_PART, part.strip(), re.IGNORECASE)
            unit = match["unit"].lower() if match else ""
            for field, units in (("latency_s", _SECONDS), ("bytes_per_s", _BYTES_PER_S)):
                if match and unit in units and field not in found and float(match["number"]):
                    found[field] = float(f"{float(match['number']) * units[unit]:.12g}")
                    break
            else:
                raise ArgumentError(f"link: expected such as 1Gbit,100us, or auto, not {text!r}")
        return (default or cls())._replace(**found)

    @property
    def known(self) -> bool:
        """Is it neither `auto` nor still to be measured?"""
        return self.bytes_per_s > 0

    def rounded(self) -> "Link":
        """With figures of 1, 2 or 5 and zeros, so that two measurements of one link agree if hosts are not busy."""
        return Link(_rounded(self.latency_s), _rounded(self.bytes_per_s * 8) / 8)

    def __str__(self) -> str:
        """Such as `1 Gbit/s, 100 µs`."""
        if not self.known:
            return "auto"
        return f"{rate_text(self.bytes_per_s)}, {format_seconds(self.latency_s)}"


def rate_text(bytes_per_s: float) -> str:
    """Such as `1 Gbit/s`."""
    bits = bytes_per_s * 8
    size, unit = next(((s, u) for s, u in ((1e9, "Gbit"), (1e6, "Mbit")) if bits >= s), (1e3, "kbit"))
    return f"{bits / size:.3g} {unit}/s"


def _rounded(figure: float) -> float:
    """The nearest of 1, 2, 5, 10 and so on, by ratio."""
    power = 10.0 ** floor(log10(figure))
    return float(f"{min((1, 2, 5, 10), key=lambda each: abs(log10(figure / power / each))) * power:.3g}")
