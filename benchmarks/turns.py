"""How contenders take turns, beside processes that compute or not, and how ranks meet before a call that is timed.

The barrier belongs to no contender, so it is the same for all of them, MPI included. A file that all ranks map holds
one counter per rank. A rank increments its own and waits until no other is behind.
"""

import contextlib
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from unisono.base.errors import WaitTimeout

Times = dict[str, list[float]]
"""Contender -> seconds per call, or step; one figure per turn."""

_MOST, _UNTIMED = 1000, 2
"""Calls of a turn, at most; and those before them that do not count, as they find cold caches and a peer's threads."""

_LINE = 128
"""Bytes per rank: two cache lines, because processors fetch them in pairs."""

_SPINS = 200
"""Reads of a counter before the first yield, about 10 µs; with more ranks than processors a rank yields at once."""

_BACKGROUND = """
import os
os.sched_setaffinity(0, range(os.cpu_count()))  # the ranks of an MPI may be pinned
parent = os.getppid()
print(flush=True)
while os.getppid() == parent: pass
"""


class Rendezvous:
    """A barrier over `ranks` processes through the file at `path`, which all of them may create."""

    def __init__(self, path: Path, rank: int, ranks: int, timeout_s: float = 120.0) -> None:
        self.rank, self.ranks, self._timeout_s = rank, ranks, timeout_s
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, ranks * _LINE)
            self._words = memoryview(mmap.mmap(descriptor, ranks * _LINE)).cast("q")
        finally:
            os.close(descriptor)
        step = _LINE // 8
        self._mine, self._number = rank * step, 0
        self._others = [(rank + d) % ranks * step for d in range(1, ranks)]
        self._spins = _SPINS if ranks <= len(os.sched_getaffinity(0)) else 0

    def barrier(self) -> None:
        """Return once every rank has called this as often as this one. Raises WaitTimeout."""
        self._number = number = self._number + 1
        words = self._words
        words[self._mine] = number
        for other in self._others:
            if words[other] < number:
                self._wait(other, number)

    def _wait(self, other: int, number: int) -> None:
        words = self._words
        for _ in range(self._spins):
            if words[other] >= number:
                return
        deadline = time.monotonic() + self._timeout_s
        while words[other] < number:
            os.sched_yield()
            if time.monotonic() > deadline:
                raise WaitTimeout("the barrier of the benchmark", self._timeout_s, [other * 8 // _LINE], self.rank)

    def share(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        if self.rank == 0:
            self._words[1] = value
        self.barrier()
        value = self._words[1]
        self.barrier()
        return value


@contextlib.contextmanager
def background(processes: int, rank: int) -> Iterator[None]:
    """Processes that compute all the time, started by rank 0: Linux may share processors among sessions first."""
    running = [
        subprocess.Popen([sys.executable, "-c", _BACKGROUND], stdout=subprocess.PIPE)
        for _ in range(processes if rank == 0 else 0)
    ]
    try:
        for process in running:
            next(iter(process.stdout or ()))  # from now on it computes
        yield
    finally:
        for process in running:
            process.kill()
            process.communicate()


def take_turns(calls: Mapping[str, Callable[[], object]], meet: Rendezvous, turns: int, turn_s: float) -> Times:
    """Seconds per call on this rank. A turn is a batch of calls back to back, which takes about `turn_s`."""
    counts, times = {}, {contender: list[float]() for contender in calls}
    for contender, call in calls.items():
        call()
        meet.barrier()
        counts[contender] = meet.share(max(1, min(_MOST, int(turn_s / _seconds(call, 3)))))
    for _ in range(turns):
        for contender, call in calls.items():
            for _ in range(_UNTIMED):
                call()
            meet.barrier()
            times[contender].append(_seconds(call, counts[contender]))
    return times


def _seconds(call: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def slowest_rank(ranks: Sequence[Times]) -> Times:
    """A turn takes as long as its slowest rank."""
    return {who: [max(turn) for turn in zip(*(times[who] for times in ranks), strict=True)] for who in ranks[0]}
