"""The processes of one local world that share one arena: fork them, give them tasks, collect what comes back."""

from __future__ import annotations

import linecache
import os
import select
import signal
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..config import Config
from ..engine.arena import Arena
from ..errors import InternalError
from .collect import Collection
from .fork_server import open_world
from .output import Outlet
from .protocol import Report, Seat, Task
from .transport import Channel, Descriptor

__all__ = ["GRACE_S", "Crew"]

GRACE_S = 5.0
"""After the first failure the other ranks have this long to end on their own: peers notice in tenths of a second."""

_FORK_S = 60.0
_STACKS_S = 2.0
_FIRST_LINE_S, _QUIET_S = 0.5, 0.05


class Crew:
    """`size` fresh ranks. After a run in which one failed, kill them: their groups cannot be used any more."""

    def __init__(self, size: int, config: Config | None = None) -> None:
        self.arena = Arena.create(size, config)
        weakref.finalize(self, self.arena.close)
        self.pids: list[int] = []
        self._controls: list[Channel] = []
        self._zygote = open_world()
        end, start = os.pipe()
        self._stacks_end, stacks_start = Descriptor(end), Descriptor(start)
        directory = Descriptor(os.open(".", os.O_PATH))
        try:
            self._fork(size)
            for rank, control in enumerate(self._controls):
                seat = Seat(rank, size, config, dict(os.environ), sys.argv)
                with suppress(ConnectionError):  # it has died, as collecting will find
                    control.send(seat, fds=[self.arena.fd, stacks_start.fileno(), directory.fileno()])
        except BaseException:
            self.kill()
            raise

    def _fork(self, size: int) -> None:
        try:
            for rank in range(size):
                control, theirs = Channel.pair()
                with theirs:
                    self._zygote.send(rank, fds=[theirs.fileno()])
                self._controls.append(control)
            deadline = time.monotonic() + _FORK_S
            for rank in range(size):
                state, _, pid = self._zygote.receive(deadline).note
                if state != "forked":
                    raise InternalError(f"rank {rank} of {size} could not be started: {pid}")
                self.pids.append(pid)
        except (EOFError, OSError) as error:
            raise InternalError(f"{size} ranks could not be started: {error}") from error

    def run(self, cargo: bytes, outlets: Sequence[Outlet], deadline: float | None) -> dict[int, tuple[Report, bytes]]:
        """Give every rank the task; return each one's report with its cargo.

        Ranks that have not reported at the deadline, or GRACE_S after the first failure, are reported as stuck, with
        their stacks.
        """
        for rank in range(len(self.pids)):
            self.arena.mark_back(rank)  # it has returned from the last run's function
        path = [os.path.abspath(entry) for entry in sys.path]
        # Lines with no time of change belong to no file.
        sources = {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
        task = Task(path, sources)
        fds = [outlet.hand_out() for outlet in outlets]
        for control in self._controls:
            with suppress(ConnectionError, TimeoutError):  # it has died or is stopped, as collecting will find
                control.send(task, cargo, fds, deadline)
        reports = Collection(self._controls, self._zygote, self.pids, self.arena, outlets).wait(deadline, GRACE_S)
        late = [rank for rank in range(len(self.pids)) if rank not in reports]
        for rank, stack in self._stacks(late).items():
            reports[rank] = Report(rank, "stuck", "did not finish", stack, time.monotonic_ns()), b""
        return reports

    def close(self) -> None:
        """Let idle ranks end like any Python process; kill those that do not."""
        for control in self._controls:
            control.hang_up()
        deadline, alive = time.monotonic() + GRACE_S, len(self.pids)
        try:
            while alive:
                alive -= self._zygote.receive(deadline).note[0] == "ended"
        except (EOFError, TimeoutError):
            pass
        self.kill()

    def kill(self) -> None:
        """End the ranks now, whatever they do, and wait until they are gone."""
        self._zygote.end_sending()
        deadline = time.monotonic() + GRACE_S
        try:
            while True:
                self._zygote.receive(deadline)
        except (EOFError, TimeoutError):
            pass  # gone; or a process that even SIGKILL does not end at once (it waits for a disk)
        self._zygote.close()
        for control in self._controls:
            control.hang_up()
        self._stacks_end.close()
        self.arena.close()

    def _stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """Where each of these ranks is, in its own words; they share one pipe, so one is asked after the other."""
        poller = select.poll()
        poller.register(self._stacks_end, select.POLLIN)
        deadline = time.monotonic() + _STACKS_S
        stacks = {}
        for rank in ranks:
            with suppress(ProcessLookupError):  # it may end just now
                os.kill(self.pids[rank], signal.SIGUSR1)
            parts, wait_s = [], min(_FIRST_LINE_S, max(0.0, deadline - time.monotonic()))
            while poller.poll(wait_s * 1e3):
                parts.append(os.read(self._stacks_end.fileno(), 1 << 16))
                wait_s = _QUIET_S
            stacks[rank] = _without_ours(b"".join(parts).decode(errors="replace")) or "(it did not say where it is)\n"
        return stacks


def _without_ours(stack: str) -> str:
    """faulthandler's text without the frames below the user's function."""
    ours = (f'  File "{Path(__file__).parent}{os.sep}', '  File "<string>"')
    return "".join(line for line in stack.splitlines(keepends=True) if not line.startswith(ours))
