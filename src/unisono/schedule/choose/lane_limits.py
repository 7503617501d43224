"""How many threads of a rank share the moves of a call, its lanes, and why.

Lanes are for long calls: to wake a helper takes some 50 µs. There are never more than processors for them. By default
all ranks share the processors, and a rank has as many lanes as PyTorch has threads there, at most. If a setting gives
their number, only the ranks that move bytes share the processors: in a broadcast of tensors in shared memory, the root
only waits, and leaves its processor to the other ranks.
"""

import os
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from ...base.config import Config
from ...base.linux import quota
from ...base.python import once
from ...base.units import format_bytes, plural

MOST = 4
"""The most lanes if no setting gives a number: more gain less than they take from programs that compute meanwhile."""


class Processors(NamedTuple):
    """What a rank may use.

    own: the processors on which it may run.
    sharers: the ranks, this one included, that may run on one of these, too.
    quota: the processor time per second that control groups leave to all ranks; None: no limit.
    threads: the number of threads that PyTorch uses in this process, such as OMP_NUM_THREADS.
    """

    own: int
    sharers: int
    quota: float | None
    threads: int

    @classmethod
    def here(cls, pids: Iterable[int], others: int, threads: int) -> "Processors":
        """What the system says. pids: of this machine's ranks, as far as they are known. others: the number of the
        other ranks. threads: see above.
        """
        mine = os.sched_getaffinity(0)
        return cls(len(mine), others + sum(_overlap(pid, mine) for pid in pids), _quota(), threads)


def _overlap(pid: int, mine: AbstractSet[int]) -> bool:
    """May this process run on one of these processors? True if it is not known."""
    try:
        return bool(os.sched_getaffinity(pid) & mine)
    except OSError:
        return True


class Lanes(NamedTuple):
    """The lanes of a call.

    number: of each rank that moves bytes.
    why: the reason for the number, if several were asked for.
    leave: do ranks that only wait sleep at once, because the others need their processors?
    """

    number: int
    why: str = ""
    leave: bool = False


_quota = once(quota)


def choose_lanes(nbytes: int, movers: int, ranks: int, neighbours: int, here: Processors, config: Config) -> Lanes:
    """The lanes of a call on vectors of `nbytes`.

    movers: the ranks of the call, of `ranks`, that copy or combine.
    neighbours: the ranks of this machine. Those that are not in the call have work of their own.
    """
    if config.lanes == 1 or not movers:
        return Lanes(1)
    if nbytes <= config.lane_bytes:
        up_to = format_bytes(config.lane_bytes)
        return Lanes(1, f"1 lane: up to {up_to}, to wake a helper takes longer than it saves")
    if config.lanes:
        busy = movers + neighbours - ranks
        limits = [(config.lanes, "as set")]
    else:
        busy = neighbours
        limits = [(MOST, "the most by default"), (here.threads, f"{plural(here.threads, 'thread')} of PyTorch")]
    beside = min(busy, here.sharers)
    limits.append((here.own // beside, plural(here.own, "processor") + (" of its own" if here.sharers == 1 else "")))
    there = here.own
    if here.quota is not None:
        limits.append((int(here.quota) // busy, f"control groups leave {here.quota:g} processors"))
        there = min(there, int(here.quota))
    most, least = min(limits, key=lambda limit: limit[0])
    number = max(1, most)
    leave = number > 1 and number * beside + here.sharers - beside > there
    return Lanes(number, f"{plural(number, 'lane')}: {least}, {busy} of {plural(neighbours, 'rank')} busy", leave)
