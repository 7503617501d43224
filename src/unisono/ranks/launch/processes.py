"""The rank processes of one local world: fork them, give them tasks, wait for their reports, end them."""

import linecache
import math
import os
import pickle
import secrets
import selectors
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile
from pathlib import Path

from ...base.config import Config
from ...base.errors import InternalError
from ...base.fd_channel import Channel, remaining
from ...base.records import DepartureKind
from ...engine.memory.arena import Arena
from ...engine.process.alive import ending_in_words, is_ending, start_ticks
from ...engine.process.nested import PACKAGE
from ...observe.live.ask_stacks import Answer, ask_for_stacks
from ...schedule import Hosts
from .fork_client import fork_rank, stop
from .launch_messages import STARTED, RankSetup, Report, Task
from .output import RankOutput

GRACE_S = 5.0
"""After the first failure the other ranks have this long to end on their own: peers notice in tenths of a second."""

START_S = 300.0
"""How long ranks may take to load the user's function: its modules' imports take long on a cold network disk."""

_FORK_S = 60.0
_STACKS_S = 2.0  # how long to wait for the stacks of ranks that are stuck


@dataclass(eq=False)
class Rank:
    """A rank, as its parent sees it: the connection to it, the memory of its host, and its process.

    line: the connection to the fork server that tells how the rank begins and ends.
    connected: the connection has not ended.
    begun: the rank has begun the function of this run.
    idle: it waits for the next task, so it leaves when the parent tells it to.
    report: what it has reported in this run.
    """

    number: int
    channel: Channel
    line: Channel
    arena: Arena
    pid: int = 0
    connected: bool = True
    begun: bool = False
    idle: bool = True
    report: Report | None = None


class RankProcesses:
    """New ranks. The ranks of a host share one arena. After a failed run, kill them: their group is of no more use."""

    def __init__(self, hosts: Hosts, config: Config | None = None) -> None:
        self._left = ExitStack()  # closes the arenas and the descriptors at the end
        weakref.finalize(self, self._left.close)
        self._ranks: list[Rank] = []
        self._arenas: list[Arena] = []
        self._runs = 0
        try:
            for _ in hosts.members:
                arena = Arena.create(hosts.ranks, config, spans=hosts.spans)
                self._arenas.append(self._left.enter_context(closing(arena)))
            self._fork(hosts)
            files = [os.open(".", os.O_PATH), os.memfd_create("unisono store")]
            for fd in files:
                self._left.callback(os.close, fd)
            secret, environ = secrets.token_bytes(32), dict(os.environ)
            for rank in self._ranks:
                board = rank.arena.board(rank.number)
                board.parent_tells_end = 1  # `_add_death` keeps the promise
                board.set_process(rank.pid, start_ticks(rank.pid))  # before any rank makes its group
            for rank in self._ranks:
                setup = RankSetup(rank.number, hosts, config, environ, sys.argv, secret)
                with suppress(ConnectionError):  # the rank has died, as `_collect` will find
                    rank.channel.send(None, pickle.dumps(setup), [rank.arena.fd, *files])
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self._ranks]

    def _fork(self, hosts: Hosts) -> None:
        try:
            for number in range(hosts.ranks):
                self._ranks.append(Rank(number, *fork_rank(), self._arenas[hosts.host_of(number)]))
            deadline = time.monotonic() + _FORK_S
            for rank in self._ranks:
                state, what = rank.line.receive(deadline).value
                if state == "refused":
                    raise InternalError(f"rank {rank.number} of {hosts.ranks} could not be started: {what}")
                rank.pid = what
        except (EOFError, OSError) as error:
            if isinstance(error, EOFError | TimeoutError):  # the fork server was killed, or stopped
                stop()
            raise InternalError(f"{hosts.ranks} ranks could not be started: {error}") from error

    def run(
        self, payload: bytes, outputs: Sequence[tuple[RankOutput, RankOutput]], timeout_s: float, *, survive: bool
    ) -> list[Report]:
        """Give every rank the task; return their reports, in rank order.

        A rank that has not begun the function after START_S is reported as `starting`. A rank is reported as `stuck` if
        it has not reported timeout_s after all ranks have begun, or GRACE_S after the first failure. Both reports have
        the rank's stacks.

        outputs: each rank's stdout and stderr.
        survive: after a failure, the other ranks go on.
        """
        self._runs += 1
        for arena in self._arenas:
            for number in range(arena.size):
                arena.board(number).run = self._runs  # clears the rank's return from the last run
        # Source lines without a modification time come from no file.
        sources = {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
        task = Task([os.path.abspath(entry) for entry in sys.path], sources)
        start_deadline = time.monotonic() + START_S
        for rank, pair in zip(self._ranks, outputs, strict=True):
            rank.begun, rank.idle, rank.report = False, False, None
            files = [output.hand_out() for output in pair]
            with suppress(ConnectionError, TimeoutError):  # the rank has died or is stopped, as `_collect` will find
                rank.channel.send(task, payload, files, start_deadline)
        distinct = {output for pair in outputs for output in pair}
        self._collect(distinct, start_deadline, timeout_s, math.inf if survive else GRACE_S)
        until = time.monotonic() + _STACKS_S
        return [rank.report or _late(rank, until) for rank in self._ranks]

    def _collect(self, outputs: Iterable[RankOutput], start_deadline: float, timeout_s: float, grace_s: float) -> None:
        """Collect reports until every rank has reported or time is up; meanwhile forward what the ranks print.

        Time is up at start_deadline if a rank has not begun the function by then, timeout_s after the last rank has
        begun, and grace_s after the first failure.
        """
        self._deadline, self._timeout_s, self._grace_s, self._grace_end = start_deadline, timeout_s, grace_s, math.inf
        with selectors.DefaultSelector() as self._selector:
            watched: list[tuple[Channel | int, Callable[[], None]]] = []
            watched += [(rank.channel, partial(self._listen, rank)) for rank in self._ranks if rank.connected]
            watched += [(rank.line, partial(self._hear_of_end, rank)) for rank in self._ranks]
            watched += [(output.pipe_end, output.forward) for output in outputs if output.pipe_end is not None]
            for file, act in watched:
                self._selector.register(file, selectors.EVENT_READ, act)
            try:
                while not all(rank.report for rank in self._ranks):
                    until = min(self._deadline, self._grace_end)
                    if time.monotonic() >= until:
                        break
                    for key, _ in self._selector.select(remaining(until)):
                        key.data()
            finally:
                for output in outputs:
                    output.finish()

    def _listen(self, rank: Rank) -> None:
        try:
            while rank.connected and (message := rank.channel.poll()) is not None:
                if message.value == STARTED:
                    self._begins(rank)
                else:
                    rank.idle = True
                    self._add(rank, Report(*message.value)._replace(payload=message.payload))
        except EOFError:
            self._selector.unregister(rank.channel)
            rank.connected = False
            if not is_ending(rank.pid):  # else the fork server will say how it has ended
                self._add_death(rank, "runs another program now, or has closed its descriptors")

    def _hear_of_end(self, rank: Rank) -> None:
        how = "was killed together with the process that ranks are forked from"
        try:
            if (message := rank.line.poll()) is None:
                return
            how = ending_in_words(message.value[1])
        except EOFError:
            pass
        self._selector.unregister(rank.line)
        self._add_death(rank, how)

    def _add_death(self, rank: Rank, how: str) -> None:
        self._listen(rank)  # its report may still be in the channel
        rank.idle = False
        if rank.report is None:
            rank.arena.board(rank.number).set_gone(DepartureKind.DIED, how)
            text = f"process {rank.pid} {how}\n"
            self._add(rank, Report(rank.number, "died", how, text, time.monotonic_ns()))

    def _add(self, rank: Rank, report: Report) -> None:
        rank.report = report
        self._begins(rank)
        if report.kind != "returned":
            self._grace_end = min(self._grace_end, time.monotonic() + self._grace_s)

    def _begins(self, rank: Rank) -> None:
        if not rank.begun and all(other.begun or other is rank for other in self._ranks):
            self._deadline = time.monotonic() + self._timeout_s
        rank.begun = True

    def close(self) -> None:
        """Let idle ranks end like any Python process. Kill the other ranks, and idle ranks that do not end."""
        for rank in self._ranks:
            rank.channel.hang_up()
        deadline = time.monotonic() + GRACE_S
        try:
            for rank in self._ranks:
                if rank.idle:
                    _await_end(rank, deadline)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the ranks now, and wait until they are gone."""
        for rank in self._ranks:
            rank.line.end_sending()
        deadline = time.monotonic() + GRACE_S
        for rank in self._ranks:
            _await_end(rank, deadline)
            rank.line.close()
            rank.channel.hang_up()
        self._left.close()


def _await_end(rank: Rank, deadline: float) -> None:
    """Wait until the process has gone. It may also wait for a disk: SIGKILL does not end it at once then."""
    with suppress(EOFError, TimeoutError):
        while True:
            rank.line.receive(deadline)


def _late(rank: Rank, until: float) -> Report:
    """The report about a rank that has sent none."""
    kind = "stuck" if rank.begun else "starting"
    return Report(rank.number, kind, "did not finish", _stacks(rank, until), time.monotonic_ns())


def _stacks(rank: Rank, until: float) -> str:
    """Where a rank is: its stacks, their inner frames first, down to the user's function."""
    answer = Answer(silent="there was no time to ask")
    if time.monotonic() < until:
        board = rank.arena.board(rank.number)
        answer = ask_for_stacks(rank.pid, board.ticks, board.stacks)
    launch, package = (f'  File "{Path(__file__).parent}{os.sep}', '  File "<string>"'), f'  File "{PACKAGE}'
    told = []
    for thread in answer.threads:
        outer = list(reversed(thread))
        start = next((place for place, line in enumerate(outer) if line.startswith(launch)), 0)
        users = list(dropwhile(lambda line: line.startswith((package, *launch)), outer[start:])) or outer
        told.append("".join(f"{line}\n" for line in reversed(users) if not line.startswith(launch)))
    return "  in another thread\n".join(told) or f"(it does not say where it is: {answer.silent})\n"
