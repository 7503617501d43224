"""News of the ranks on other hosts, through the sentinel of this host."""

import json
import os
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..base.errors import ArgumentError
from ..base.fd_channel import peer_of, remaining
from ..base.linux import fill_standard_streams
from ..base.records import Departure, DepartureKind
from ..engine.memory.arena import Arena
from ..observe.live.ask_stacks import Answer, ProcessStatus
from ..schedule import Hosts
from .sentinel import BEAT_S, MOST_BYTES_LOCAL
from .sentinel.estate import turns_of
from .sentinel.sights import read_sight
from .sentinel.start import start_again

_LEAVE_S = 1.0  # how long a rank that leaves waits for a sentinel that starts, and until it has read what the rank says
_LOOK_S, _LOOK_AGAIN_S = 1.0, 0.2  # how long to wait for a stack, and how often to ask for it
_RETRY_S = 0.005
_TRIES = 8  # how often in a row a sentinel may end before it serves


class Far:
    """A rank's connection to its host's sentinel.

    Any thread may use it, and signal handlers; only `close` waits. Boards and control lines of far members are in the
    regions of this host's arena. They are as fresh as the last ticket. Changes that their owners announce by `wake`
    come at once.

    news: see `Arena.news`.

    A sentinel that is killed goes on as another process: then a rank connects again, and says again what it has said.
    If both processes have been killed, the first rank that sees it starts them again; if both are stopped, it kills
    them first. If that fails, this host is cut off: other hosts count it as lost, and their ranks count as gone here.
    """

    def __init__(
        self, arena: Arena, hosts: Hosts, rank: int, name: str, silent_s: float, deadline: float | None = None
    ) -> None:
        """Connect to the sentinel that serves at this name. silent_s: how long hosts may be silent.

        Raises OSError if no sentinel serves, ArgumentError if it is another user's.
        """
        self.silent_s, self.news = silent_s, arena.news
        self._arena, self._hosts, self._rank, self._pid = arena, hosts, rank, os.getpid()
        self._name, self._socket, self._sentinel_pid = name, _connect(name, deadline), 0
        self._lock = threading.RLock()
        self._out: deque[bytes] = deque()
        self._newest = 0  # the newest ticket
        self._asked: dict[int, int] = {}  # group -> the ticket that is under way
        self._next: dict[int, int] = {}  # group -> the ticket that follows
        self._used: dict[int, list[list[object]]] = {}
        """Group -> what this rank has said of it, until its memory is free."""
        self._left: dict[int, Departure] = {}
        self._cut_off: str | None = None
        self._last_words = ""  # of a sentinel that serves no longer
        self._sight = 0, ""
        """The newest answer to a question what a rank does, and its ticket."""
        self._tries = 0
        self._kept: list[int] = []
        """Descriptors of the sentinel's port and estate, for the next one."""
        self._turns = -1
        self._looked_at = self._silent_s = 0.0
        self._ended = self.closed = False

    def register(self, gid: int, start: int, members: Sequence[int]) -> None:
        """Let the sentinel copy far members' boards into the group's region, and show them this rank's board.

        gid: the group's number, of 64 bits, the same on all hosts. No other group ever has it.
        start: where its region begins in this host's arena.
        members: ranks of the world, in order.
        """
        self._say_of(gid, ["register", gid, start, list(members)])

    def forget(self, gid: int) -> None:
        """This rank uses the group no more. The sentinel still sends its last board. See `is_free`."""
        with self._lock:
            self._asked.pop(gid, None)
            self._next.pop(gid, None)
            if gid in self._used:
                self._say_of(gid, ["forget", gid])

    def is_free(self, gid: int) -> bool:
        """Has the sentinel left the group's region? It leaves once all living ranks here have forgotten the group.
        Before, the memory must not be used for anything else.
        """
        self._take_in()
        return gid not in self._used or self._ended or self.closed

    def ask(self, gid: int) -> int:
        """Ask for fresh copies of far members' boards. Returns a ticket. One question of a group is under way at a
        time. The next question follows with the next call of `ask` or `answered` after that.
        """
        with self._lock:
            self._take_in()
            if gid in self._asked:
                return self._next.get(gid) or self._next.setdefault(gid, self._ticket())
            ticket = self._asked[gid] = self._ticket()
            self._say(["ask", gid, ticket])
            return ticket

    def answered(self, ticket: int) -> bool:
        """Have all living hosts answered the question of this ticket, or a later one? True if the sentinel is lost."""
        with self._lock:
            self._take_in()
            waits = ticket in self._asked.values() or ticket in self._next.values()
            return not waits or self._ended

    def wake(self, gid: int) -> None:
        """Show the others at once this rank's board of this group.

        For departures, calls given up, and proposals: peers that wait should not have to ask for these.
        """
        self._say(["wake", gid])

    def look_at(self, rank: int) -> tuple[ProcessStatus, Answer]:
        """What a rank of another host does now, and its stacks, as its host's sentinel sees them. Waits for a second at
        most.
        """
        ticket, until = self._ticket(), time.monotonic() + _LOOK_S
        seen = ProcessStatus(), Answer(silent="its host has not answered")
        while not (seen[1].threads or seen[0].state == "T" or self._ended) and time.monotonic() < until:
            self._say(["look", rank, ticket])
            self._await(lambda: self._sight[0] == ticket, _LOOK_AGAIN_S)
            with suppress(ValueError):
                seen = read_sight(self._sight[1]) if self._sight[0] == ticket else seen
        return seen

    def lose(self, rank: int) -> None:
        """This rank can exchange no messages with that one any more, and does not know why. One of their hosts is left
        out, the one with the higher number.
        """
        self._say(["lost", rank])

    @property
    def cut_off(self) -> str | None:
        """Why this host is on the losing side, if it is: it hears fewer than half of the hosts, or others went on."""
        self._take_in()
        return self._cut_off

    def left(self, rank: int) -> Departure | None:
        """How a far rank has gone for good, by its end or by `close`; also if it aborted the world before."""
        self._take_in()
        how = self._left.get(rank)
        if how is None and self._ended and rank not in self._hosts.beside(self._rank):
            how = Departure(DepartureKind.DIED, f"is on another host, and {self._cut_off}")
        return how

    def close(self) -> None:
        """Send the last boards, and leave. When all ranks of a host have left, its sentinel ends. Idempotent."""
        if not self.closed:
            if os.getpid() == self._pid:  # in a forked child, the connection is its parent's
                self._await(lambda: self.sentinel_pid > 0)  # it takes in no process that has ended
                self._say_of(-1, ["close"])
                self._await(lambda: self.left(self._rank) is not None)
            self.closed = True
            self._socket.close()
            self._close_kept()

    def _close_kept(self) -> None:
        while self._kept:
            os.close(self._kept.pop())

    def __del__(self) -> None:  # a program may drop a world without closing it
        if hasattr(self, "_kept"):
            self._close_kept()

    def _await(self, condition: Callable[[], bool], most_s: float = _LEAVE_S) -> None:
        """Wait for a message of the sentinel after which this is true, for some time."""
        until = time.monotonic() + most_s
        while not (condition() or self._ended) and (left_s := until - time.monotonic()) > 0:
            poller = select.poll()
            poller.register(self._socket, select.POLLIN)
            poller.poll(1e3 * left_s)
            self._take_in()

    @property
    def sentinel_pid(self) -> int:
        """The sentinel's process, once it has said that it serves; 0: it has not yet."""
        self._take_in()
        return self._sentinel_pid

    def _ticket(self) -> int:
        self._newest += 1
        return self._newest

    def _say_of(self, gid: int, value: list[object]) -> None:
        """Say what a sentinel must know that goes on as another process. gid: -1: it is about no group."""
        with self._lock:
            self._used.setdefault(gid, []).append(value)
            self._say(value)

    def _say(self, value: list[object]) -> None:
        with self._lock:
            if not self._ended:
                self._out.append(json.dumps(value).encode())
            self._flush()
            if self._out:
                self._take_in()

    def _flush(self) -> None:
        while self._out:
            data = self._out.popleft()
            try:
                self._socket.send(data)
            except OSError:  # the sentinel is busy or stopped, or has hung up
                self._out.appendleft(data)
                return

    def _take_in(self) -> None:
        """Read the sentinel's messages."""
        with self._lock:
            self._flush()
            while not (self.closed or self._ended):
                try:
                    data = self._receive()
                except BlockingIOError:
                    self._mind_the_silence()
                    return
                except ConnectionResetError:  # it has not read all; what it has said can still be read
                    continue
                except OSError:
                    data = b""
                if data:
                    self._hear(json.loads(data))
                else:
                    self._connect_again()

    def _receive(self) -> bytes:
        data, beside, _, _ = self._socket.recvmsg(MOST_BYTES_LOCAL, socket.CMSG_LEN(8), socket.MSG_CMSG_CLOEXEC)
        for _, _, numbers in beside:
            fds = memoryview(numbers).cast("i").tolist()
            self._kept, spare = (self._kept, fds) if self._kept else (fds, [])
            for fd in spare:
                os.close(fd)
        return data

    def _mind_the_silence(self) -> None:
        """Kill both processes of the sentinel, which may be stopped, before other hosts lose this one."""
        if not (self._asked and self._kept):
            return
        now, turns = time.monotonic(), turns_of(self._kept[1])
        passed_s, self._looked_at = now - self._looked_at, now
        # If this rank has not looked for longer, it was busy or stopped itself.
        self._silent_s = self._silent_s + min(passed_s, BEAT_S) if turns == self._turns else 0.0
        self._turns = turns
        if self._silent_s > self.silent_s * 3 / 4:
            self._silent_s = 0.0
            with suppress(ProcessLookupError):
                os.killpg(os.getpgid(self._sentinel_pid), signal.SIGKILL)

    def _hear(self, said: list[object]) -> None:
        match said:
            case ["serves", int(pid)]:
                self._sentinel_pid, self._tries = pid, 0
            case ["fresh", int(ticket)]:
                gid = next((gid for gid in list(self._asked) if self._asked.get(gid) == ticket), None)
                # Garbage that is collected meanwhile may forget the group.
                if gid is not None and self._asked.pop(gid, 0) and (later := self._next.pop(gid, 0)):
                    self._asked[gid] = later
                    self._say(["ask", gid, later])
            case ["sight", int(ticket), str(text)]:
                self._sight = ticket, text
            case ["forgotten", int(gid)]:
                self._used.pop(gid, None)
            case ["gone", int(rank), int(how), str(words)]:
                self._left[rank] = Departure(DepartureKind(how), words)
            case ["last words", str(words)]:
                self._last_words = words
            case ["cut", str(words)]:
                self._cut_off = self._cut_off or words

    def _connect_again(self) -> None:
        """The sentinel has hung up: another process goes on in its place."""
        self._tries += 1
        self._socket.close()
        try:
            if self._last_words or self._tries > _TRIES or os.getpid() != self._pid:
                raise ConnectionRefusedError
            self._socket = self._connect_or_start()
        except (OSError, ArgumentError):
            self._has_ended()
            return
        asked: list[list[object]] = [["ask", gid, ticket] for gid, ticket in self._asked.items()]
        again = [value for said in (*self._used.values(), asked) for value in said]
        self._out.extendleft(json.dumps(value).encode() for value in reversed(again))
        self._flush()

    def _connect_or_start(self) -> socket.socket:
        deadline = time.monotonic() + _LEAVE_S
        while True:
            try:
                return _connect(self._name, deadline)
            except ConnectionRefusedError:  # both processes have ended
                if not self._kept or time.monotonic() > deadline:
                    raise
            with suppress(OSError):  # another rank is faster, and may not listen yet
                start_again(self._arena, self._name, *self._kept)
            time.sleep(_RETRY_S)

    def _has_ended(self) -> None:
        self._out.clear()
        if not (self.closed or self._ended):
            self._ended = True
            how = "has ended" if self._sentinel_pid else "has not started: standard error shows why"
            self._lose_sight(self._last_words or how)

    def _lose_sight(self, how: str) -> None:
        pid = self._sentinel_pid or ""
        self._cut_off = self._cut_off or (
            f"this host is cut off, because its sentinel{pid and f' (process {pid})'} {how} (end the ranks of this "
            "host, and start them again)"
        )


def _connect(name: str, deadline: float | None) -> socket.socket:
    """A connection to the sentinel, which may serve later. The rank that starts the sentinel has made its socket."""
    fill_standard_streams()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(remaining(deadline))
        sock.connect(f"\0{name}")
        sock.setblocking(False)
        pid, user = peer_of(sock)
    except OSError:
        sock.close()
        raise
    if user != os.getuid():
        sock.close()
        raise ArgumentError(
            f"process {pid} of user {user} listens at the socket of this host's sentinel. End that process, and start "
            "the job again."
        )
    return sock
