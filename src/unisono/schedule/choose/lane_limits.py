"""How many threads of a rank share the moves of a call, its lanes, and why.

Lanes are for long calls: to wake a helper takes some 50 µs. There are never more than processors for them, which all
ranks share. By default a rank has as many lanes as PyTorch has threads there, at most.
"""

from typing import NamedTuple

from ...base.config import Config
from ...base.units import format_bytes, plural

MOST = 4
"""The most lanes if no setting gives a number: more gain less than they take from programs that compute meanwhile."""


class Processors(NamedTuple):
    """What a rank may use.

    own: the processors on which it may run.
    shared: those that all ranks of this machine may use together.
    neighbours: these ranks.
    threads: the number of threads that PyTorch uses in this process, such as OMP_NUM_THREADS.
    """

    own: int
    shared: int
    neighbours: int
    threads: int


class Lanes(NamedTuple):
    """The number of lanes of a call, and the reason for it, if several were asked for."""

    number: int
    why: str = ""


def choose_lanes(nbytes: int, here: Processors, config: Config) -> Lanes:
    """The lanes of a call on vectors of `nbytes`."""
    if config.lanes == 1:
        return Lanes(1)
    if nbytes <= config.lane_bytes:
        up_to = format_bytes(config.lane_bytes)
        return Lanes(1, f"1 lane: up to {up_to}, to wake a helper takes longer than it saves")
    limits = [(config.lanes, "as set")]
    if not config.lanes:
        limits = [(MOST, "the most by default"), (here.threads, f"{plural(here.threads, 'thread')} of PyTorch")]
    shared = f"{plural(here.shared, 'processor')} for {plural(here.neighbours, 'rank')}"
    limits += [(here.shared // here.neighbours, shared), (here.own, f"bound to {plural(here.own, 'processor')}")]
    most, least = min(limits, key=lambda limit: limit[0])
    number = max(1, most)
    return Lanes(number, f"{plural(number, 'lane')}: {least}")
