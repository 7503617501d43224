"""What a check has found: that all is well, what could be gained, or what is wrong."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["problem", "advice", "ok"]

LEVELS: tuple[Level, ...] = ("problem", "advice", "ok")
"""Worst first."""


class Finding(NamedTuple):
    """level: ok; advice, where something can be gained; problem, where calls fail or stop each other for long.

    topic: what was looked at. says: what is there. reason: why that matters. change: what to do. gain: what it brings.
    """

    level: Level
    topic: str
    says: str
    reason: str = ""
    change: str = ""
    gain: str = ""


def fine(topic: str, says: str) -> Finding:
    """Nothing to change."""
    return Finding("ok", topic, says)


def advice(topic: str, says: str, *, reason: str, change: str, gain: str = "") -> Finding:
    """Something can be gained."""
    return Finding("advice", topic, says, reason, change, gain)


def problem(topic: str, says: str, *, reason: str, change: str, gain: str = "") -> Finding:
    """Calls fail, or take many times what they need."""
    return Finding("problem", topic, says, reason, change, gain)
