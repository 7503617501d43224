"""One rank of a local world, in a process forked from the fork server: set up, run tasks, report."""

import io
import linecache
import os
import sys
import time
import traceback
from contextlib import suppress
from itertools import dropwhile
from socket import gethostname
from typing import NoReturn

import numpy as np
import torch
from torch.distributed import FileStore

from ...base.errors import ArgumentError, InternalError, PeerFailed, PeerGone, UnisonoError, WaitTimeout
from ...base.fd_channel import Channel, Packet
from ...base.python import tell
from ...base.records import RAISED_AT_NS, DepartureKind
from ...engine.memory.arena import Arena
from ...engine.process.nested import PACKAGE
from ..group.current import join_run
from ..group.group import Group
from ..group.world_group import world_group
from ..rendezvous.identity import HOST_ID
from ..rendezvous.meeting import LOOPBACK, MeetingResult
from .launch_messages import STARTED, RankSetup, Report, Task, pack, unpack

_ROOM = os.path.dirname(os.path.abspath(__file__)) + os.sep


def serve_parent(channel: Channel) -> None:
    """Set this process up as the parent says, then run tasks until the parent ends the connection."""
    rank = None
    try:
        rank = _Rank(channel)
        while True:
            task, payload, fds = channel.receive()
            _prepare(Task(*task), *fds)
            report = rank.perform(payload)
            with suppress(OSError, ValueError, AttributeError):  # they may be closed, or None
                sys.stdout.flush()
                sys.stderr.flush()
            channel.send(report[:-1], report.payload)
    except (EOFError, ConnectionError):
        if rank is not None:
            rank.leave()


class _Rank:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        message: Packet = channel.receive()
        self._setup: RankSetup = unpack(message.payload)
        arena_fd, directory_fd, self._store = message.fds
        os.fchdir(directory_fd)
        os.close(directory_fd)
        os.environ.clear()
        os.environ.update(self._setup.environ)
        sys.argv[:] = self._setup.argv
        # A fork has copied the generators' states: without this every rank would draw the same "random" numbers.
        torch.seed()
        np.random.seed()
        self._arena = Arena.attach(arena_fd)
        torch.set_num_threads(max(1, self._arena.processors // self._setup.hosts.ranks))
        if self._setup.hosts.spans:  # for groups that meet by themselves, such as torch.distributed's
            os.environ[HOST_ID] = f"{self._setup.hosts.host_of(self._setup.rank)}"
        self._group: Group | None = None

    def perform(self, payload: bytes) -> Report:
        """Call the function; then tell peers that still wait for this rank that it has returned or failed."""
        rank, process = self._setup.rank, os.getpid()
        try:
            world = self._join()  # within this try, so that the parent hears what it raises
            function, args, kwargs = unpack(payload)
            self._channel.send(STARTED)
            result = function(*args, **kwargs)
            if os.getpid() != process:  # a child that the function has forked: its parent is the rank
                os._exit(0)
            # Peers still need the calls that the function has left in the background.
            world.finish()
            self._say_gone(DepartureKind.RETURNED, "returned from the function")
            closed, at_ns = world.closed or world.broken is not None, time.monotonic_ns()
            return Report(rank, "returned", "returned", "", at_ns, closed, _pack_result(rank, result))
        except BaseException as error:  # noqa: BLE001  SystemExit, too: the parent raises it again, the rank lives on
            if os.getpid() != process:
                _end_child(error)
            at_ns = getattr(error, RAISED_AT_NS, time.monotonic_ns())
            how = "raised " + "".join(traceback.format_exception_only(error)).strip()
            self._say_gone(DepartureKind.RAISED, how.splitlines()[0])
            kind = "waited" if isinstance(error, PeerGone | PeerFailed | WaitTimeout) else "raised"
            text, packed = _pack_error(error)
            return Report(rank, kind, how, text, at_ns, payload=packed)

    def _say_gone(self, how: DepartureKind, words: str) -> None:
        if self._group is not None and not self._group.closed:
            self._group.tell_departure(how, words)
        else:  # the function has closed the group, or the group could not be made
            self._arena.board(self._setup.rank).set_gone(how, words)

    def _join(self) -> Group:
        """The group of all ranks, made at the first run."""
        if self._group is None:
            self._group = world_group(self._meet(), self._setup.rank, config=self._setup.config)
        join_run(self._group)
        return self._group

    def _meet(self) -> MeetingResult:
        """What ranks know that have met: the parent has told it all, and hosts are parts of this machine."""
        # With a mapping of its own, which the function may close with shutdown().
        arena, setup = Arena.attach(os.dup(self._arena.fd)), self._setup
        if not setup.hosts.spans:
            return MeetingResult(arena, setup.hosts)
        store = FileStore(f"/proc/self/fd/{self._store}")
        names = tuple(f"{gethostname()}/{number}" for number in range(len(setup.hosts.members)))
        return MeetingResult(arena, setup.hosts, store, names, LOOPBACK, setup.secret)

    def leave(self) -> None:
        """Close the group and the arena."""
        if self._group is not None:
            self._group.close()
        self._arena.close()


def _prepare(task: Task, out: int, err: int) -> None:
    for fd, number, stream in ((out, 1, sys.stdout), (err, 2, sys.stderr)):
        # A function may have closed or replaced the stream.
        text = stream if isinstance(stream, io.TextIOWrapper) and not stream.closed else None
        if text:
            with suppress(OSError):  # the last run's output may be gone
                text.flush()
        os.dup2(fd, number)
        os.close(fd)
        if text:
            text.reconfigure(line_buffering=True, write_through=False)  # lines of several ranks do not mix
    sys.path += [entry for entry in task.path if entry not in sys.path]
    linecache.cache.update({name: (*entry,) for name, entry in task.sources.items()})


def _end_child(error: BaseException) -> NoReturn:
    """End a forked child as Python would, without the rank's own end."""
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(code, int | None):
        code = 1
    if not isinstance(error, SystemExit):
        tell("".join(traceback.format_exception(error)))
    os._exit(code or 0)


def _pack_result(rank: int, result: object) -> bytes:
    try:
        return pack(result)
    except Exception as error:
        name = type(result).__qualname__
        raise ArgumentError(
            f"cannot send the result of rank {rank}, of type {name}, to the parent: {error}. Return tensors and plain "
            "data."
        ) from error


def _pack_error(error: BaseException) -> tuple[str, bytes]:
    text = "".join(_account(error).format())
    try:
        packed = pack(error)
        unpack(packed)  # exceptions with a constructor of their own often pack well and never unpack
    except Exception as failure:  # noqa: BLE001  the exception's own code runs here
        return f"{text}(The exception itself could not be sent: {type(failure).__qualname__}: {failure})\n", b""
    return text, packed


def _account(error: BaseException) -> traceback.TracebackException:
    """The traceback from the user's function on, and for an error of this package without all the package's frames."""
    account = traceback.TracebackException.from_exception(error)
    hidden = PACKAGE if isinstance(error, UnisonoError) and not isinstance(error, InternalError) else _ROOM
    link: traceback.TracebackException | None = account
    while link is not None:
        inside = list(dropwhile(lambda frame: frame.filename.startswith(PACKAGE), link.stack)) or link.stack
        frames = [frame for frame in inside if not frame.filename.startswith(hidden)]
        link.stack = traceback.StackSummary.from_list(frames)
        link = link.__cause__ or link.__context__
    return account
