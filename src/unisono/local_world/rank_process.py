"""One rank of a local world, in a process forked from the fork server: set up, run tasks, report."""

from __future__ import annotations

import io
import linecache
import os
import sys
import time
import traceback
from contextlib import suppress
from typing import NoReturn

import numpy as np
import torch

from ..channel import Channel, Packet
from ..engine.arena import Arena
from ..errors import ArgumentError, InternalError, PeerFailed, PeerGone, UnisonoError, WaitTimeout
from ..membership.current import join_run
from ..membership.group import Group
from ..records import DepartureKind
from .messages import STARTED, RankSetup, Report, Task
from .pickling import pack, unpack

__all__ = ["serve_parent"]

_ROOM = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(_ROOM)) + os.sep


def serve_parent(channel: Channel) -> None:
    """Set this process up as the parent says, then run its tasks until it ends the connection."""
    rank = None
    try:
        rank = _Rank(channel)
        while True:
            task, payload, fds = channel.receive()
            _prepare(task, *fds)
            report, result = rank.perform(payload)
            with suppress(OSError, ValueError):  # the function may have closed them
                sys.stdout.flush()
                sys.stderr.flush()
            channel.send(report, result)
    except (EOFError, ConnectionError):
        if rank is not None:
            rank.leave()


class _Rank:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        message: Packet = channel.receive()
        self._setup: RankSetup = message.value
        arena_fd, directory_fd = message.fds
        os.fchdir(directory_fd)
        os.close(directory_fd)
        os.environ.clear()
        os.environ.update(self._setup.environ)
        sys.argv[:] = self._setup.argv
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // self._setup.size))
        # A fork has copied the generators' states: without this every rank would draw the same "random" numbers.
        torch.seed()
        np.random.seed()
        self._arena = Arena.attach(arena_fd)
        self._group: Group | None = None

    def perform(self, payload: bytes) -> tuple[Report, bytes]:
        """Call the function; then tell peers that still wait for this rank that it has returned or failed."""
        rank, process = self._setup.rank, os.getpid()
        try:
            if self._group is None:  # within this try, so that the parent hears what it raises
                # On a mapping of its own, which the function may close with shutdown().
                self._group = Group(Arena.attach(os.dup(self._arena.fd)), rank, config=self._setup.config)
            join_run(self._group)
            function, args, kwargs = unpack(payload)
            self._channel.send(STARTED)
            result = function(*args, **kwargs)
            if os.getpid() != process:  # a child that the function has forked: the rank is its parent
                os._exit(0)
            self._group.finish()  # peers still need the calls that the function has left in the background
            self._arena.board(rank).set_gone(DepartureKind.RETURNED, "returned from the function")
            report = Report(
                rank,
                "returned",
                "returned",
                at_ns=time.monotonic_ns(),
                closed=self._group.closed or self._group.broken is not None,
            )
            return report, _pack_result(rank, result)
        except BaseException as error:  # noqa: BLE001  SystemExit too: the parent raises it again, the rank lives on
            if os.getpid() != process:
                _end_child(error)
            at_ns = time.monotonic_ns()
            how = "raised " + "".join(traceback.format_exception_only(error)).strip()
            self._arena.board(rank).set_gone(DepartureKind.RAISED, how.splitlines()[0])
            kind = "waited" if isinstance(error, PeerGone | PeerFailed | WaitTimeout) else "raised"
            text, packed = _pack_error(error)
            return Report(rank, kind, how, text, at_ns), packed

    def leave(self) -> None:
        """Close the group and the arena."""
        if self._group is not None:
            self._group.close()
        self._arena.close()


def _prepare(task: Task, out: int, err: int) -> None:
    for fd, number, stream in ((out, 1, sys.stdout), (err, 2, sys.stderr)):
        # A function may have closed it, or put something of its own there.
        text = stream if isinstance(stream, io.TextIOWrapper) and not stream.closed else None
        if text:
            with suppress(OSError):  # where the last run printed may be gone
                text.flush()
        os.dup2(fd, number)
        os.close(fd)
        if text:
            text.reconfigure(line_buffering=True, write_through=False)  # lines stay whole among other ranks
    sys.path += [entry for entry in task.path if entry not in sys.path]
    linecache.cache.update(task.sources)


def _end_child(error: BaseException) -> NoReturn:
    """End a forked child as Python would, without the rank's own end."""
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(code, int | None):
        code = 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
        sys.stderr.flush()
    os._exit(code or 0)


def _pack_result(rank: int, result: object) -> bytes:
    try:
        return pack(result)
    except Exception as error:
        name = type(result).__qualname__
        raise ArgumentError(
            f"the result of rank {rank}, of type {name}, cannot be sent to the parent: {error}. "
            "Return tensors and plain data."
        ) from error


def _pack_error(error: BaseException) -> tuple[str, bytes]:
    text = "".join(_account(error).format())
    try:
        packed = pack(error)
        unpack(packed)  # exceptions with a constructor of their own often pack well and never unpack
    except Exception as failure:  # noqa: BLE001  any: it is the exception's own code that runs here
        return f"{text}(The exception itself could not be sent: {type(failure).__qualname__}: {failure})\n", b""
    return text, packed


def _account(error: BaseException) -> traceback.TracebackException:
    """The traceback without this room's frames, and without the whole package's if it is one of its own errors."""
    account = traceback.TracebackException.from_exception(error)
    hidden = _PACKAGE if isinstance(error, UnisonoError) and not isinstance(error, InternalError) else _ROOM
    link: traceback.TracebackException | None = account
    while link is not None:
        frames = [frame for frame in link.stack if not frame.filename.startswith(hidden)]
        link.stack = traceback.StackSummary.from_list(frames)
        link = link.__cause__ or link.__context__
    return account
