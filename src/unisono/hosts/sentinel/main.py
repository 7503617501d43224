"""The sentinel's process: sockets and a clock around the state machine. It watches the processes of its ranks.

The ranks of its host are connected to its socket. Other hosts send datagrams.
"""

import json
import os
import resource
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from mmap import mmap

from ...base.fd_channel import peer_of
from ...engine.process.alive import PARENT_S, ending_in_words, exit_status, start_ticks, watch_process
from . import MOST_BYTES_LOCAL
from .estate import Estate
from .regions import Regions
from .spare import Spare
from .state_machine import Ended, Event, Said, SentinelState, Tick
from .wire import MOST_BYTES, Authenticator, parsed

_AT_ONCE = 64
_SOON_S = 0.005
_MOST_WORDS, _MOST_PLACES = 1000, 5


class _Connection:
    def __init__(self, sock: socket.socket, rank: int) -> None:
        self.sock, self.rank = sock, rank
        self.waiting: deque[bytes] = deque()

    def send(self, data: bytes) -> None:
        self.waiting.append(data)
        self.flush()

    def flush(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            while self.waiting:
                self.sock.send(self.waiting[0])
                self.waiting.popleft()


class Ranks:
    """The connections of the ranks, each with its process number and start time.

    The kernel says which process is at the other end. The sentinel only reads messages of ranks, and sends other
    processes away without a word. A message is a short list in JSON: a word, whole numbers and lists of these.

    kept: descriptors that a rank keeps for the next sentinel.
    """

    def __init__(self, listener: socket.socket, ranks: Mapping[int, tuple[int, int]], kept: Sequence[int]) -> None:
        self.listener, self._kept = listener, kept
        self._ranks = {pid: (rank, ticks) for rank, (pid, ticks) in ranks.items()}
        self.connections: dict[int, _Connection] = {}
        self.said: list[bytes] = []  # the messages for all ranks

    def accept(self) -> Iterator[int]:
        """Take in the ranks that have connected; yields their descriptors."""
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self.listener.accept()
            except OSError:  # no process connects, or no descriptor is free
                return
            pid, user = peer_of(sock)
            rank, ticks = self._ranks.get(pid, (-1, 0))
            if user != os.getuid() or rank < 0 or start_ticks(pid) != ticks:
                sock.close()
                continue
            sock.setblocking(False)
            connection = self.connections[sock.fileno()] = _Connection(sock, rank)
            with suppress(ConnectionError):
                socket.send_fds(sock, [json.dumps(["serves", os.getpid()]).encode()], self._kept)
            for data in self.said:
                connection.send(data)
            yield sock.fileno()

    def receive(self, fd: int) -> Iterator[Event]:
        """The messages of a rank. Raises ValueError if one makes no sense: then drop the connection."""
        connection = self.connections[fd]
        for _ in range(_AT_ONCE):
            try:
                data, _, flags, _ = connection.sock.recvmsg(MOST_BYTES_LOCAL)
            except BlockingIOError:
                return
            except ConnectionError:  # the rank has left before it had read all; what it has said can still be read
                continue
            if not data:
                self.drop(fd)
                return
            if flags & socket.MSG_TRUNC:
                raise ValueError("a message is too long")
            match parsed(data):
                case [str(word), *rest]:
                    yield Said(connection.rank, word, rest)
                case _:
                    raise ValueError("not a message")

    def tell(self, rank: int | None, value: list[object]) -> None:
        """Send a message to a rank, on all its connections; None: to all ranks, now and when they connect."""
        data = json.dumps(value).encode()
        if rank is None:
            self.said.append(data)
        for connection in self.connections.values():
            if rank in (None, connection.rank):
                connection.send(data)

    def flush(self) -> None:
        """Send messages that did not fit into a rank's queue before."""
        for connection in self.connections.values():
            connection.flush()

    def refuse(self, fd: int, words: str) -> None:
        """End a connection for good. words: the end of the sentence "the sentinel ..."."""
        self.connections[fd].send(json.dumps(["last words", words]).encode())
        self.drop(fd)

    def drop(self, fd: int) -> None:
        """End a connection. The rank may come again."""
        self.connections.pop(fd).sock.close()


class Watching:
    """The processes of ranks, each with its number and its start time. Raises OSError if no descriptor is free."""

    def __init__(self, ranks: Mapping[int, tuple[int, int]], regions: Regions) -> None:
        self._ranks, self._regions = dict(ranks), regions
        self._pidfds = {rank: watch_process(pid, ticks) for rank, (pid, ticks) in ranks.items()}
        """Rank -> the descriptor of its process; None: the process has ended."""
        self._poller = select.poll()
        for fd in self.descriptors:
            self._poller.register(fd, select.POLLIN)
        self._until: dict[int, float] = {}

    def ended(self, now: float) -> list[Ended]:
        """The ranks whose processes have ended since the last look."""
        found, ready = [], {fd for fd, _ in self._poller.poll(0)}
        for rank, fd in list(self._pidfds.items()):
            if fd is not None and fd not in ready:
                continue
            pid, ticks = self._ranks[rank]
            status = exit_status(pid, ticks, fd)
            waits = status is None and self._regions.departure(rank) is None and self._regions.parent_tells_end(rank)
            if waits and now < self._until.setdefault(rank, now + PARENT_S):
                continue
            found.append(Ended(rank, "died" if status is None else ending_in_words(status)))
            del self._pidfds[rank]
            if fd is not None:
                self._poller.unregister(fd)
                os.close(fd)
        return found

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that become readable when a process ends."""
        return [fd for fd in self._pidfds.values() if fd is not None]

    @property
    def impatient(self) -> bool:
        """Has a process ended, and its parent has not yet written how?"""
        return any(rank in self._until for rank in self._pidfds)


def main(channel_fd: int, arena_fd: int) -> None:
    """Serve a host's ranks until all have ended or left. What it serves comes on the channel: see `start`."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # ranks that are asked to end may take their time; then it ends, too
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # two descriptors a rank
    with socket.socket(fileno=channel_fd) as channel:
        _, fds, _, _ = socket.recv_fds(channel, 1, 3)
    if not fds:
        return  # the ranks have not met
    listener, udp = (socket.socket(fileno=fd) for fd in fds[:2])
    loop = _Loop(Estate(fds[2]), listener, udp, mmap(arena_fd, 0))
    # From here on, no process reads this one's output, and no process shall wait for its end.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 2)
    try:
        loop.run()
    except BaseException as error:  # noqa: BLE001  a bug: the ranks report it, because this one's output has no reader
        loop.ranks.tell(None, ["last words", f"has crashed: {_last_words(error)}"])
        list(loop.ranks.accept())  # accepting sends it to ranks that connect just now, too
    loop.spare.end()
    os._exit(0)  # saves the time that an interpreter takes to end


def _last_words(error: BaseException) -> str:
    """An exception, and the last of the calls that have led to it."""
    import traceback  # imports some twenty modules

    said = "".join(traceback.format_exception_only(error)).strip()
    places = [
        f"{os.path.basename(at.filename)}:{at.lineno} in {at.name}" for at in traceback.extract_tb(error.__traceback__)
    ]
    return f"{said[:_MOST_WORDS]} ({', '.join(reversed(places[-_MOST_PLACES:]))})"


class _Loop:
    def __init__(self, estate: Estate, listener: socket.socket, udp: socket.socket, memory: mmap) -> None:
        self._estate, self._udp, setup = estate, udp, estate.setup
        hosts, silent_s = setup["hosts"], setup["silent_s"]
        processes = {rank: (pid, ticks) for rank, pid, ticks in setup["ranks"]}
        self._regions = Regions(memory, setup["start"], sum(map(len, hosts)))
        self._watching, self.spare = Watching(processes, self._regions), Spare(silent_s / 4, estate.turns)
        self.ranks = Ranks(listener, processes, (udp.fileno(), estate.fd))
        self._machine = SentinelState(hosts, setup["me"], setup["names"], self._regions, time.monotonic(), silent_s)
        self._addresses = [(str(host), int(port)) for host, port in setup["addresses"]]
        self._begin()

    def _begin(self) -> None:
        """Go on from what the process before has written down, if there was one."""
        first = time.monotonic_ns()  # above all numbers before: no process uses one each nanosecond
        if written := self._estate.read():
            self._machine, self.ranks.said = written
            self._machine.take_over(self._regions, first)
        self._remembered = self._machine.remembered
        secret, me = bytes.fromhex(self._estate.setup["secret"]), self._estate.setup["me"]
        self._seal = Authenticator(secret, me, self._estate.highest, first)
        self._epoll = select.epoll()
        self._epoll.register(self._udp, select.EPOLLIN)
        self._epoll.register(self.ranks.listener, select.EPOLLIN)
        for fd in self._watching.descriptors:
            self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)

    def _let_go(self) -> None:
        """Hold no connection: what a rank says may be lost with a process, so it says it again to the next one."""
        self._epoll.close()
        for fd in list(self.ranks.connections):
            self.ranks.drop(fd)

    def run(self) -> None:
        while not self._machine.done:
            for event in self._watching.ended(time.monotonic()):
                self._step(event)
            if self._machine.wake_in(time.monotonic()) <= 0:
                self._step(Tick())
            self._speak()
            self.ranks.flush()
            wait_s = self._machine.wake_in(time.monotonic())
            for fd, _ in self._epoll.poll(min(wait_s, _SOON_S) if self._watching.impatient else wait_s):
                if fd == self._udp.fileno():
                    self._hear()
                elif fd == self.ranks.listener.fileno():
                    for new in self.ranks.accept():
                        self._epoll.register(new, select.EPOLLIN)
                elif fd in self.ranks.connections:
                    self._serve(fd)
        self._speak()

    def _hear(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data = self._udp.recv(MOST_BYTES + 1)
            except OSError:  # no more messages; or one could not be delivered: then the receiver will be silent
                return
            datagram = self._seal.open(data)
            if datagram is not None:
                self._step(datagram)

    def _serve(self, fd: int) -> None:
        try:
            for event in self.ranks.receive(fd):
                self._step(event)
        except ValueError as error:
            self.ranks.refuse(fd, f"has hung up: {error}")

    def _step(self, event: Event) -> None:
        self._machine.step(event, time.monotonic())

    def _speak(self) -> None:
        """Send what the last steps have said, once it is written down why."""
        if self._remembered != self._machine.remembered:
            self._estate.write((self._machine, self.ranks.said))
            self._remembered = self._machine.remembered
        while self.spare.renew(self._let_go):
            self._begin()
        machine = self._machine
        told, machine.told = machine.told, []
        sent, machine.sent = machine.sent, []
        for rank, value in told:
            self.ranks.tell(rank, value)
        for host, digest, body in sent:
            with suppress(OSError):  # a network that is down is silent, too
                self._udp.sendto(self._seal.seal(host, digest, body), self._addresses[host])
