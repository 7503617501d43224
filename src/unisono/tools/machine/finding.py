"""The result of a check."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["problem", "advice", "ok"]


class Finding(NamedTuple):
    """The result of a check.

    level: ok; advice: calls could be faster; problem: calls fail, or stop each other for long.
    topic: what was looked at.
    says: what was found.
    reason: why it matters.
    change: what to do.
    """

    level: Level
    topic: str
    says: str
    reason: str = ""
    change: str = ""


def judge(topic: str, says: str, good: bool, reason: str, change: str, *, broken: bool = False) -> Finding:
    """A finding: ok if good, else a problem if broken, else advice."""
    if good:
        return Finding("ok", topic, says)
    return Finding("problem" if broken else "advice", topic, says, reason, change)
