"""What a network link between hosts does: how long a message takes at least, and how many bytes pass per second."""

import re
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
    """

    latency_s: float = 100e-6
    bytes_per_s: float = 1.25e9

    @classmethod
    def parse(cls, text: str, default: "Link | None" = None) -> "Link":
        """From `1Gbit,100us`, `25Gbit`, `2.5GB,1ms` or the like. A missing part is that of `default`.

        Raises ArgumentError.
        """
        found: dict[str, float] = {}
        for part in text.split(","):
            match = re.fullmatch(_PART, part.strip(), re.IGNORECASE)
            unit = match["unit"].lower() if match else ""
            for field, units in (("latency_s", _SECONDS), ("bytes_per_s", _BYTES_PER_S)):
                if match and unit in units and field not in found and float(match["number"]):
                    found[field] = float(f"{float(match['number']) * units[unit]:.12g}")
                    break
            else:
                raise ArgumentError(f"link: got {text!r}, expected bandwidth and latency, such as 1Gbit,100us")
        return (default or cls())._replace(**found)

    def __str__(self) -> str:
        """Such as `1 Gbit/s, 100 µs`."""
        return f"{rate_text(self.bytes_per_s)}, {format_seconds(self.latency_s)}"


def rate_text(bytes_per_s: float) -> str:
    """Such as `1 Gbit/s`."""
    bits = bytes_per_s * 8
    size, unit = next(((s, u) for s, u in ((1e9, "Gbit"), (1e6, "Mbit")) if bits >= s), (1e3, "kbit"))
    return f"{bits / size:.3g} {unit}/s"
