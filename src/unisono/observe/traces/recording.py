"""Record all calls of a rank on disk: its logs are longer then, and lie in files, as its notes do.

The kernel writes to a mapped file as to shared memory. So a trace costs no more than the log that is always on, and the
files are complete however the process ends.

    FOLDER/calls/JOB.rank-R.PID.N.notes      lines of JSON: the head; each group and where its log is; notes; its end
    FOLDER/calls/JOB.rank-R.PID.N.K.log      the log of the K-th group

`unisono trace FOLDER` makes one file of all, for Perfetto: FOLDER/JOB.json. If hosts share no folder, it takes the
folders of all hosts.
"""

import json
import mmap
import os
import socket
import sys
import time
import weakref
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from ...base.python import tell
from ...engine.clock import Clock
from ...engine.logs.plan_registry import PlanNote
from ...engine.logs.rank_logs import log_bytes
from ...engine.memory.arena import Arena
from ...engine.rank import RankEngine
from .recorded import this_machine

_numbers = count()


class RecordedAt(NamedTuple):
    """The place of a rank in a job over several hosts: the job's number, the host's number and name."""

    job: int
    host: int
    name: str


def record(engine: RankEngine, folder: Path, at: RecordedAt | None = None) -> "Recording | None":
    """Begin to record all calls of this rank of the world; None, and a warning, if this is not possible.

    at: None on one host.
    """
    with suppress(OSError):
        if engine.plan_registry.recorder is not None:
            return None
        engine.plan_registry.recorder = made = Recording(engine, folder, at)
        return made
    _say(f"cannot write to {folder}: nothing is traced")
    return None


class Recording:
    """The recording of one rank's calls. engine: the world's."""

    def __init__(self, engine: RankEngine, folder: Path, at: RecordedAt | None) -> None:
        self._folder = folder.resolve()
        place = self._folder / "calls"
        place.mkdir(parents=True, exist_ok=True)
        arena, me = engine.arena, os.getpid()
        self._notebook, self._calls = engine.plan_registry, 1 << max(1, engine.config.trace_calls - 1).bit_length()
        job = "unisono"
        if at is not None:
            job = f"unisono-{at.job:016x}"
        elif isinstance(arena, Arena):
            job = f"unisono-{os.fstat(arena.fd).st_ino}"
        self._name = f"{job}.rank-{engine.rank}.{me}.{next(_numbers)}"
        self._engines: weakref.WeakSet[RankEngine] = weakref.WeakSet()
        self._followed = count()
        self._file = (place / f"{self._name}.notes").open("x", buffering=1)
        self._owner, self._cut = me, False
        self._write(
            "head", job=job, rank=engine.rank, size=engine.size, host=at.host if at else 0,
            host_name=at.name if at else socket.gethostname(), machine=this_machine(), pid=me,
            command=" ".join(sys.argv), clock=Clock.now(), unix_ns=time.time_ns() - time.monotonic_ns(),
        )  # fmt: skip

    def follow(self, engine: RankEngine, name: str, gid: int) -> None:
        """Record the calls of a group, too. gid: its number, if it is over several hosts. Not while it is in a call."""
        path = self._folder / "calls" / f"{self._name}.{next(self._followed)}.log"
        memory = self._map(path, log_bytes(self._calls), f"calls of group {name!r}")
        if memory is None:
            return
        self._engines.add(engine)
        which = {"name": name, "start": engine.arena.start, "gid": gid, "member": engine.rank, "size": engine.size}
        self._write("group", **which, log=path.name)
        engine.log_to(str(path), memory)

    @staticmethod
    def _map(path: Path, nbytes: int, what: str) -> mmap.mmap | None:
        """A new file of this size; None, and a warning, if there is no room."""
        try:
            with path.open("x+b") as file:
                os.posix_fallocate(file.fileno(), 0, nbytes)
                return mmap.mmap(file.fileno(), nbytes)
        except OSError as error:
            _say(f"cannot write {path}: {error.strerror}: the {what} are not traced")
            return None

    def keep(self, number: int, note: PlanNote) -> None:
        self._write("note", number=number, **note._asdict())

    def keep_earlier(self, numbers: dict[int, PlanNote]) -> None:
        """Record the notes of plans made before: from the plan registry, where they are whole, otherwise these."""
        for number, note in numbers.items():
            self.keep(number, self._notebook.plan(number) or note)

    def stop(self, engine: RankEngine) -> None:
        """Log the calls of a group in shared memory again. Not while it is in a call."""
        if engine in self._engines:
            engine.log_to()

    def close(self) -> None:
        """End the recording."""
        if self._notebook.recorder is self and os.getpid() == self._owner:
            self._notebook.recorder = None
            self._write("end", clock=Clock.now())
            with suppress(OSError):  # the disk is full, as `_write` has reported
                self._file.close()

    def _write(self, kind: str, **what: object) -> None:
        try:
            self._file.write(json.dumps([kind, what]) + "\n")
        except (OSError, ValueError) as error:
            if not self._cut:
                self._cut = True
                _say(f"cannot write {self._file.name}: {error}: the trace lacks a part")


def _say(text: str) -> None:
    tell(f"unisono: {text}\n")
