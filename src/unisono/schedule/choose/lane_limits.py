"""How many threads of a rank share the moves of a call, its lanes, and why.

Lanes are for long calls: to wake a helper takes some 50 µs. There are never more than processors for them: ranks that
move bytes share the processors, and the threads that programs give to PyTorch. In a broadcast of tensors in shared
memory, the root only waits: it leaves its processor to the other ranks.
"""

import os
from typing import NamedTuple

from ...base.config import Config
from ...base.linux import allowance
from ...base.python import once
from ...base.units import format_bytes, plural


class Processors(NamedTuple):
    """What a rank may use.

    own: the processors on which it may run.
    machine: all processors of the machine.
    quota: the processor time per second that control groups leave to all ranks; None: no limit.
    threads: the number of threads that PyTorch uses in this process, such as OMP_NUM_THREADS.
    """

    own: int
    machine: int
    quota: float | None
    threads: int

    @classmethod
    def of_this_process(cls, threads: int) -> "Processors":
        """What the system says. threads: see above."""
        return cls(len(os.sched_getaffinity(0)), os.cpu_count() or 1, _quota(), threads)


class Lanes(NamedTuple):
    """The number of lanes of a rank that moves bytes, and the reason for it, if they were asked for."""

    number: int
    why: str = ""


@once
def _quota() -> float | None:
    return allowance().processors


def choose_lanes(nbytes: int, movers: int, ranks: int, neighbours: int, here: Processors, config: Config) -> Lanes:
    """The lanes of a call on vectors of `nbytes`.

    movers: the ranks of the call, of `ranks`, that copy or combine.
    neighbours: the ranks of this machine. Those that are not in the call have work of their own.
    """
    if config.lanes == 1 or not movers:
        return Lanes(1)
    if nbytes < config.lane_bytes:
        return Lanes(1, f"1 lane: below {format_bytes(config.lane_bytes)}, to wake a helper takes longer than it saves")
    busy = movers + neighbours - ranks
    bound = here.own * neighbours <= here.machine  # each rank to processors of its own
    limits = [
        (config.lanes, "as set"),
        (here.own if bound else here.own // busy, f"{plural(here.own, 'processor')}{' of its own' if bound else ''}"),
        (here.threads * neighbours // busy, f"{plural(here.threads, 'thread')} of PyTorch on each rank"),
    ]
    if here.quota is not None:
        limits.append((int(here.quota) // busy, f"control groups leave {here.quota:g} processors"))
    most, least = min(limits, key=lambda limit: limit[0])
    number = max(1, most)
    return Lanes(number, f"{plural(number, 'lane')}: {least}, {busy} of {plural(neighbours, 'rank')} busy")
