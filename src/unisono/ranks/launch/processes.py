"""The rank processes of one local world: fork them, give them tasks, wait for their reports, end them.

A fork server forks them. It starts at first use, one per process, and has a connection per world.
"""

import atexit
import linecache
import os
import secrets
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from itertools import dropwhile
from pathlib import Path

from ...base.config import Config
from ...base.errors import InternalError
from ...base.fd_channel import Channel, PlainChannel
from ...engine.memory.arena import Arena
from ...engine.process.ask_stacks import Answer, ask_for_stacks
from ...engine.process.nested import PACKAGE
from ...schedule import Hosts
from .launch_messages import RankSetup, Report, SeveralHosts, Task
from .reports import Collector, RankOutput

_BOOT_S = 300.0
"""How long the fork server may import torch and compile kernels: seconds, and minutes on a cold network disk."""
_ANSWER_S = 30.0
"""A fork server that works answers within microseconds, and within seconds on a host that is out of memory."""

_LEAVE_S = 5.0  # a fork server leaves as soon as its parent's socket ends; one that does not is killed
_ALSO = ("pytest",)  # what ranks need, too, if it is loaded here when the fork server starts

_BOOT = (
    "import sys; fd, parent, also, *path = sys.argv[1:]; sys.path[:] = path; "
    f"from {__package__}.fork_server import main; main(int(fd), int(parent), also.split())"
)


class _ForkClient:
    def __init__(self) -> None:
        self._channel, theirs = PlainChannel.pair()
        with theirs:
            fd, also = theirs.fileno(), " ".join(name for name in _ALSO if name in sys.modules)
            # A session of its own: Ctrl-C reaches the parent only, which then stops the ranks in order.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(fd), str(os.getpid()), also, *sys.path],
                pass_fds=[fd],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            self._boot()
        except BaseException:
            self._process.kill()  # it does not listen yet, and has forked nothing
            self.stop()
            raise

    def _boot(self) -> None:
        who = f"the process that ranks are forked from ({sys.executable})"
        try:
            state, details = self._channel.receive(time.monotonic() + _BOOT_S).value
        except EOFError as error:
            code = self._process.wait()
            raise InternalError(f"{who} ended with code {code}; standard error shows what it said") from error
        except TimeoutError as error:
            raise InternalError(f"{who} was not ready after {_BOOT_S:g} s") from error
        if state == "failed":
            raise InternalError(f"{who} could not start:\n{details}")

    def open_world(self) -> Channel:
        mine, theirs = PlainChannel.pair()
        with theirs:
            self._channel.send(None, fds=[theirs.fileno()])
        mine.receive(time.monotonic() + _ANSWER_S)
        return mine

    def stop(self) -> None:
        self._channel.hang_up()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """In a forked child of this process: leave the fork server to the parent."""
        self._channel.close()
        self._process.returncode = 0


_lock = threading.Lock()
_client: _ForkClient | None = None


def open_world() -> Channel:
    """A connection to this process's fork server for one more world. Starts the server if none runs."""
    global _client  # noqa: PLW0603  each process has one
    with _lock:
        if _client is not None:
            try:
                return _client.open_world()
            except (EOFError, OSError):  # it was killed or stopped
                _client.stop()
                _client = None
        _client = _ForkClient()
        return _client.open_world()


def _stop() -> None:
    global _client  # noqa: PLW0603  see open_world
    if _client is not None:
        _client.stop()
        _client = None


def _forget() -> None:
    global _lock, _client  # noqa: PLW0603  see open_world
    _lock = threading.Lock()
    if _client is not None:
        _client.forget()
        _client = None


atexit.register(_stop)
os.register_at_fork(after_in_child=_forget)


GRACE_S = 5.0
"""After the first failure the other ranks have this long to end on their own: peers notice in tenths of a second."""

START_S = 300.0
"""How long ranks may take to load the user's function: its modules' imports take long on a cold network disk."""

_FORK_S = 60.0
_STACKS_S = 2.0  # how long to wait for the stacks of ranks that are stuck


class RankProcesses:
    """`size` new ranks that share one arena. With `hosts`, the ranks of each host share one.

    After a failed run, kill them: their group cannot be used any more.
    """

    def __init__(self, size: int, config: Config | None = None, hosts: Hosts | None = None) -> None:
        self._fork_server = open_world()
        self._left = ExitStack()  # closes the arenas and the descriptors at the end
        weakref.finalize(self, self._left.close)
        members = hosts.members if hosts else (range(size),)
        arenas = {host: self._left.enter_context(closing(Arena.create(size, config))) for host in members}
        self._arenas = [next(arenas[host] for host in members if rank in host) for rank in range(size)]
        for rank, arena in enumerate(self._arenas):
            arena.board(rank).set_parent_tells_end()  # `Collector` keeps the promise
        self.pids: list[int] = []
        self._size, self._idle = size, set(range(size))  # the idle ranks: each leaves when the parent tells it to
        self._channels: list[Channel] = []
        self._runs = 0
        self._config = config
        self._span: SeveralHosts | None = None
        self._given: list[int] = []
        self._give(os.open(".", os.O_PATH))
        try:
            self._fork(size)
            if hosts and hosts.spans:
                self._span = SeveralHosts(hosts, secrets.token_bytes(32), self.pids)
                self._give(os.memfd_create("unisono store"))
            for rank, channel in enumerate(self._channels):
                self._set_up(rank, channel)
        except BaseException:
            self.kill()
            raise

    def _give(self, fd: int) -> None:
        self._left.callback(os.close, fd)
        self._given.append(fd)

    def _set_up(self, rank: int, channel: Channel) -> None:
        environ = dict(os.environ)
        setup = RankSetup(rank, self._size, self._config, environ, sys.argv, self._span)
        with suppress(ConnectionError):  # the rank has died, as collecting will find
            channel.send(setup, fds=[self._arenas[rank].fd, *self._given])

    def _fork(self, size: int) -> None:
        try:
            for rank in range(size):
                channel, theirs = Channel.pair()
                with theirs:
                    self._fork_server.send(rank, fds=[theirs.fileno()])
                self._channels.append(channel)
            deadline = time.monotonic() + _FORK_S
            for rank in range(size):
                state, _, pid = self._fork_server.receive(deadline).value
                if state != "forked":
                    raise InternalError(f"rank {rank} of {size} could not be started: {pid}")
                self.pids.append(pid)
        except (EOFError, OSError) as error:
            raise InternalError(f"{size} ranks could not be started: {error}") from error

    def run(
        self,
        payload: bytes,
        outputs: Sequence[tuple[RankOutput, RankOutput]],
        timeout_s: float | None,
        *,
        survive: bool = False,
    ) -> dict[int, tuple[Report, bytes]]:
        """Give every rank the task; return each one's report with its payload.

        A rank that has not begun the function after START_S is reported as `starting`. A rank is reported as `stuck` if
        it has not reported timeout_s after all ranks have begun, or GRACE_S after the first failure. Both reports have
        the rank's stacks.

        outputs: each rank's stdout and stderr.
        survive: after a failure, the other ranks go on.
        """
        self._runs += 1
        for rank in range(len(self.pids)):
            for arena in {id(arena): arena for arena in self._arenas}.values():
                arena.board(rank).begin_run(self._runs)  # clears the rank's return from the last run
        path = [os.path.abspath(entry) for entry in sys.path]
        # Source lines without a modification time come from no file.
        sources = {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
        task = Task(path, sources)
        start_deadline = time.monotonic() + START_S
        for channel, pair in zip(self._channels, outputs, strict=True):
            files = [output.hand_out() for output in pair]
            with suppress(ConnectionError, TimeoutError):  # the rank has died or is stopped, as collecting will find
                channel.send(task, payload, files, start_deadline)
        distinct = list({output for pair in outputs for output in pair})
        collector = Collector(self._channels, self._fork_server, self.pids, self._arenas, distinct)
        collector.wait(start_deadline, timeout_s, None if survive else GRACE_S)
        self._idle = collector.idle
        late = [rank for rank in range(len(self.pids)) if rank not in collector.reports]
        for rank, stack in self._stacks(late).items():
            kind = "starting" if rank in collector.starting else "stuck"
            collector.reports[rank] = Report(rank, kind, "did not finish", stack, time.monotonic_ns()), b""
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

    def _stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        deadline = time.monotonic() + _STACKS_S
        stacks = {}
        for rank in ranks:
            answer = Answer(silent="there was no time to ask")
            if time.monotonic() < deadline:
                board = self._arenas[rank].board(rank)
                answer = ask_for_stacks(self.pids[rank], board.ticks, board.stacks)
            stacks[rank] = _text(answer.threads) or f"(it does not say where it is: {answer.silent})\n"
        return stacks


def _text(threads: Sequence[Sequence[str]]) -> str:
    """The stacks, their inner frames first, down to the user's function."""
    launch, package = (f'  File "{Path(__file__).parent}{os.sep}', '  File "<string>"'), f'  File "{PACKAGE}'
    told = []
    for thread in threads:
        outer = list(reversed(thread))
        start = next((place for place, line in enumerate(outer) if line.startswith(launch)), 0)
        users = list(dropwhile(lambda line: line.startswith((package, *launch)), outer[start:])) or outer
        lines = [line for line in reversed(users) if not line.startswith(launch)]
        told.append("".join(f"{line}\n" for line in lines))
    return "  in another thread\n".join(told)
