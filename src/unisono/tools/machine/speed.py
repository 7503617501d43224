"""How fast ranks of this machine make some calls, beside one process that copies; and what that says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...base.units import format_seconds, plural
from .finding import Finding, advice, fine

_SLOW_BARRIER_S = 50e-6


class Speed(NamedTuple):
    """Seconds of a call on so many ranks, on tensors of `nbytes`. way: private, staged (private, but copied through
    staging areas) or shared (in shared memory).
    """

    call: str
    nbytes: int
    way: str
    ranks: int
    seconds: float


def fastest(speeds: Sequence[Speed], call: str, nbytes: int, way: str, ranks: int) -> float | None:
    """The seconds of such a call; None where it was not measured."""
    key = call, nbytes, way, ranks
    return min((one.seconds for one in speeds if one[:4] == key), default=None)


def crossing_gain(speeds: Sequence[Speed]) -> str:
    """What it brings that ranks may read each other's memory, in words; "" where that is not known, or nothing."""
    for one in speeds:
        if one.way == "staged":
            direct = fastest(speeds, one.call, one.nbytes, "private", one.ranks)
            if direct is not None and direct < one.seconds:
                return f"long calls on private tensors take {1 - direct / one.seconds:.0%} less time"
    return ""


def check_barrier(speeds: Sequence[Speed], usable: int) -> list[Finding]:
    """Do ranks that each have a processor meet without delay? usable: processors."""
    barriers = [one for one in speeds if one.call == "barrier"]
    if not barriers:
        return []
    said = ", ".join(f"{format_seconds(one.seconds)} on {plural(one.ranks, 'rank')}" for one in barriers)
    if all(one.seconds < _SLOW_BARRIER_S for one in barriers if one.ranks <= usable):
        return [fine("barrier", said)]
    return [
        advice(
            "barrier",
            said,
            reason="ranks with a processor each meet within microseconds: here some did not run when others waited",
            change="see load, quota and virtual; then measure again",
        )
    ]
