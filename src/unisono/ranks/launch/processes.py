"""The rank processes of one local world: fork them, give them tasks, wait for their reports, end them."""

import linecache
import math
import os
import secrets
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from itertools import dropwhile
from pathlib import Path

from ...base.config import Config
from ...base.errors import InternalError
from ...base.fd_channel import Channel
from ...engine.memory.arena import Arena
from ...engine.process.ask_stacks import Answer, ask_for_stacks
from ...engine.process.nested import PACKAGE
from ...schedule import Hosts
from .collector import Collector, StartedRank
from .fork_client import open_world
from .launch_messages import RankSetup, Report, Task
from .output import RankOutput

GRACE_S = 5.0
"""After the first failure the other ranks have this long to end on their own: peers notice in tenths of a second."""

START_S = 300.0
"""How long ranks may take to load the user's function: its modules' imports take long on a cold network disk."""

_FORK_S = 60.0
_STACKS_S = 2.0  # how long to wait for the stacks of ranks that are stuck


class RankProcesses:
    """New ranks. The ranks of a host share one arena. After a failed run, kill them: their group is of no more use."""

    def __init__(self, hosts: Hosts, config: Config | None = None) -> None:
        size, members = hosts.ranks, hosts.members
        self._fork_server = open_world()
        self._left = ExitStack()  # closes the arenas and the descriptors at the end
        weakref.finalize(self, self._left.close)
        self._arenas = [self._left.enter_context(closing(Arena.create(size, config))) for _ in members]
        self._ranks: list[StartedRank] = []
        self._idle = set(range(size))  # each leaves when the parent tells it to
        self._ended: dict[int, int] = {}
        self._channels: list[Channel] = []
        self._runs = 0
        files = [os.open(".", os.O_PATH), os.memfd_create("unisono store")]
        for fd in files:
            self._left.callback(os.close, fd)
        try:
            pids = self._fork(size)
            secret, environ = secrets.token_bytes(32), dict(os.environ)
            for rank, channel in enumerate(self._channels):
                arena = self._arenas[hosts.host_of(rank)]
                arena.board(rank).parent_tells_end = 1  # `Collector` keeps the promise
                self._ranks.append(StartedRank(channel, arena, pids[rank]))
                setup = RankSetup(rank, hosts, config, environ, sys.argv, secret, pids)
                with suppress(ConnectionError):  # the rank has died, as collecting will find
                    channel.send(setup, fds=[arena.fd, *files])
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self._ranks]

    def _fork(self, size: int) -> list[int]:
        pids: list[int] = []
        try:
            for rank in range(size):
                channel, theirs = Channel.pair()
                with theirs:
                    self._fork_server.send(rank, fds=[theirs.fileno()])
                self._channels.append(channel)
            deadline = time.monotonic() + _FORK_S
            while len(pids) < size:
                state, rank, number = self._fork_server.receive(deadline).value
                if state == "refused":
                    raise InternalError(f"rank {rank} of {size} could not be started: {number}")
                if state == "forked":
                    pids.append(number)
                else:  # it has already ended
                    self._ended[rank] = number
        except (EOFError, OSError) as error:
            raise InternalError(f"{size} ranks could not be started: {error}") from error
        return pids

    def run(
        self, payload: bytes, outputs: Sequence[tuple[RankOutput, RankOutput]], timeout_s: float, *, survive: bool
    ) -> dict[int, tuple[Report, bytes]]:
        """Give every rank the task; return each one's report with its payload.

        A rank that has not begun the function after START_S is reported as `starting`. A rank is reported as `stuck` if
        it has not reported timeout_s after all ranks have begun, or GRACE_S after the first failure. Both reports have
        the rank's stacks.

        outputs: each rank's stdout and stderr.
        survive: after a failure, the other ranks go on.
        """
        self._runs += 1
        for arena in self._arenas:
            for rank in range(arena.size):
                arena.board(rank).run = self._runs  # clears the rank's return from the last run
        # Source lines without a modification time come from no file.
        sources = {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
        task = Task([os.path.abspath(entry) for entry in sys.path], sources)
        start_deadline = time.monotonic() + START_S
        for channel, pair in zip(self._channels, outputs, strict=True):
            files = [output.hand_out() for output in pair]
            with suppress(ConnectionError, TimeoutError):  # the rank has died or is stopped, as collecting will find
                channel.send(task, payload, files, start_deadline)
        collector = Collector(self._ranks, self._fork_server, self._ended)
        distinct = {output for pair in outputs for output in pair}
        collector.wait(distinct, start_deadline, timeout_s, math.inf if survive else GRACE_S)
        self._idle = collector.idle
        until = time.monotonic() + _STACKS_S
        for rank in sorted({*range(len(self._ranks))} - {*collector.reports}):
            kind = "starting" if rank in collector.starting else "stuck"
            stacks = _stacks(self._ranks[rank], rank, until)
            collector.reports[rank] = Report(rank, kind, "did not finish", stacks, time.monotonic_ns()), b""
        return collector.reports

    def close(self) -> None:
        """Let idle ranks end like any Python process. Kill the other ranks, and idle ranks that do not end."""
        for channel in self._channels:
            channel.hang_up()
        deadline = time.monotonic() + GRACE_S
        try:
            while self._idle:
                what, rank, _ = self._fork_server.receive(deadline).value
                if what == "ended":
                    self._idle.discard(rank)
        except (EOFError, TimeoutError):
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the ranks now, and wait until they are gone."""
        self._fork_server.end_sending()
        deadline = time.monotonic() + GRACE_S
        try:
            while True:
                self._fork_server.receive(deadline)
        except (EOFError, TimeoutError):
            pass  # the processes have gone; or one waits for a disk, and SIGKILL does not end it at once
        self._fork_server.close()
        for channel in self._channels:
            channel.hang_up()
        self._left.close()


def _stacks(of: StartedRank, rank: int, until: float) -> str:
    """Where a rank is: its stacks, their inner frames first, down to the user's function."""
    answer = Answer(silent="there was no time to ask")
    if time.monotonic() < until:
        board = of.arena.board(rank)
        answer = ask_for_stacks(of.pid, board.ticks, board.stacks)
    launch, package = (f'  File "{Path(__file__).parent}{os.sep}', '  File "<string>"'), f'  File "{PACKAGE}'
    told = []
    for thread in answer.threads:
        outer = list(reversed(thread))
        start = next((place for place, line in enumerate(outer) if line.startswith(launch)), 0)
        users = list(dropwhile(lambda line: line.startswith((package, *launch)), outer[start:])) or outer
        told.append("".join(f"{line}\n" for line in reversed(users) if not line.startswith(launch)))
    return "  in another thread\n".join(told) or f"(it does not say where it is: {answer.silent})\n"
