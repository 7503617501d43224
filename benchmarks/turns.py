"""How contenders take turns, and how ranks of a trial tell how far they are.

The barrier belongs to no contender, so it is the same for all of them, MPI included. A file that all ranks map holds
one counter per rank. A rank increments its own and waits until no other is behind.
"""

import ctypes
import json
import mmap
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unisono.base.errors import WaitTimeout

Times = dict[str, list[float]]
"""Contender -> seconds per call, or step; one figure per turn."""

_MOST, _UNTIMED = 1000, 2
"""Calls of a turn, at most; and those before them that do not count, as they find cold caches and a peer's threads."""

_LINE = 128
"""Bytes per rank: two cache lines, because processors fetch them in pairs."""

_SPINS = 200
"""Reads of a counter before the first yield, about 10 µs; with more ranks than processors a rank yields at once."""

_syscall = ctypes.CDLL(None).syscall
_FUTEX, _FUTEX_WAIT, _FUTEX_WAKE = 98 if platform.machine() == "aarch64" else 202, 0, 1


class Rendezvous:
    """A barrier over `ranks` processes through the file at `path`, which all of them may create."""

    def __init__(self, path: Path, rank: int, ranks: int, timeout_s: float = 120.0) -> None:
        self.rank, self.ranks, self._timeout_s = rank, ranks, timeout_s
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, ranks * _LINE)
            self._memory = mmap.mmap(descriptor, ranks * _LINE)
            self._words = memoryview(self._memory).cast("q")
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


class BareFutex(Rendezvous):
    """The same for two ranks, but the first one sleeps in a futex until the other one wakes it."""

    def barrier(self) -> None:
        super().barrier()
        self._futex(self._mine, _FUTEX_WAKE, 1)

    def _wait(self, other: int, number: int) -> None:
        while self._words[other] < number:
            self._futex(other, _FUTEX_WAIT, number - 1)

    def _futex(self, word: int, what: int, value: int) -> None:
        _syscall(_FUTEX, ctypes.byref(ctypes.c_char.from_buffer(self._memory, word * 8)), what, value, None, None, 0)


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


class Meeting:
    """A folder with a file for each stage that a rank of a trial has reached: no fault touches files."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def tell(self, stage: str, value: Any = None) -> None:
        """Write it down. value: of JSON."""
        draft = self._folder / f"{stage}.draft"
        draft.write_text(json.dumps(value))
        draft.rename(self._folder / stage)

    def has(self, stage: str) -> bool:
        return (self._folder / stage).exists()

    def told(self, stage: str, ranks: Iterable[int]) -> dict[int, Any]:
        """The values of `stage R`, of those of the ranks that have told them."""
        files = {rank: self._folder / f"{stage} {rank}" for rank in ranks}
        return {rank: json.loads(file.read_text()) for rank, file in files.items() if file.exists()}


def until(condition: Callable[[], bool], most_s: float = 60.0) -> bool:
    """Wait until this is true, or for so long. Returns whether it is."""
    end = time.monotonic() + most_s
    while not (done := condition()) and time.monotonic() < end:
        time.sleep(0.002)
    return done
