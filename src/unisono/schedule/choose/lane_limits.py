"""How many threads of a rank share the moves of a call, its lanes, and why.

Lanes are for long calls: to wake a helper takes some 50 µs. There are never more than processors for them. By default
all ranks share the processors, and a rank has as many lanes as PyTorch has threads there, at most. If a setting gives
their number, only the ranks that move bytes share the processors: in a broadcast of tensors in shared memory, the root
only waits, and leaves its processor to the other ranks.
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
    """The lanes of a call.

    number: of each rank that moves bytes.
    why: the reason for the number, if several were asked for.
    leave: do ranks that only wait sleep at once, because the others need their processors?
    """

    number: int
    why: str = ""
    leave: bool = False


def choose_lanes(nbytes: int, movers: int, ranks: int, here: Processors, config: Config) -> Lanes:
    """The lanes of a call on vectors of `nbytes`.

    movers: the ranks of the call, of `ranks`, that copy or combine. Other ranks of this machine have work of their own.
    """
    if config.lanes == 1 or not movers:
        return Lanes(1)
    if nbytes <= config.lane_bytes:
        up_to = format_bytes(config.lane_bytes)
        return Lanes(1, f"1 lane: up to {up_to}, to wake a helper takes longer than it saves")
    if config.lanes:
        busy = movers + here.neighbours - ranks
        limits = [(config.lanes, "as set")]
    else:
        busy = here.neighbours
        limits = [(MOST, "the most by default"), (here.threads, f"{plural(here.threads, 'thread')} of PyTorch")]
    limits.append((here.shared // busy, plural(here.shared, "processor")))
    limits.append((here.own, f"bound to {plural(here.own, 'processor')}"))
    most, least = min(limits, key=lambda limit: limit[0])
    number = max(1, most)
    leave = number > 1 and number * busy + here.neighbours - busy > here.shared
    return Lanes(number, f"{plural(number, 'lane')}: {least}, {busy} of {plural(here.neighbours, 'rank')} busy", leave)
