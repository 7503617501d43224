"""The life of one rank of a local world, in a process just forked from the zygote."""

from __future__ import annotations

import faulthandler
import io
import linecache
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from typing import NoReturn

import numpy as np
import torch

from ..engine.arena import Arena
from ..errors import ArgumentError, InternalError, PeerFailed, PeerGone, UnisonoError, WaitTimeout
from ..records import How
from .cargo import pack, unpack
from .current import join_run
from .group import Group
from .protocol import Report, Seat, Task
from .transport import Channel, Message

__all__ = ["live"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def live(control: Channel) -> None:
    """Take the seat that the parent offers, then do its tasks until it hangs up."""
    rank = None
    try:
        rank = _Rank(control.receive())
        while True:
            task, cargo, fds = control.receive()
            _prepare(task, *fds)
            report, result = rank.perform(cargo)
            with suppress(OSError, ValueError):  # the function may have closed them
                sys.stdout.flush()
                sys.stderr.flush()
            control.send(report, result)
    except (EOFError, ConnectionError):
        if rank is not None:
            rank.leave()


class _Rank:
    def __init__(self, message: Message) -> None:
        self._seat: Seat = message.note
        arena_fd, stacks_fd, directory_fd = message.fds
        os.fchdir(directory_fd)
        os.close(directory_fd)
        os.environ.clear()
        os.environ.update(self._seat.environ)
        sys.argv[:] = self._seat.argv
        # The parent asks a rank that is stuck where it is; this answers even while some C code holds the interpreter.
        faulthandler.register(signal.SIGUSR1, stacks_fd, all_threads=True)
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // self._seat.size))
        # A fork has copied the generators' states: without this every rank would draw the same "random" numbers.
        torch.seed()
        np.random.seed()
        self._arena = Arena.attach(arena_fd)
        self._group: Group | None = None

    def perform(self, cargo: bytes) -> tuple[Report, bytes]:
        """Call the function, and tell the peers that wait for this rank that it will not come any more."""
        rank, process = self._seat.rank, os.getpid()
        try:
            if self._group is None:  # here, because what it raises belongs to the parent
                # On a mapping of its own, which the function may close with shutdown().
                self._group = Group(Arena.attach(os.dup(self._arena.fd)), rank, config=self._seat.config)
            join_run(self._group)
            function, args, kwargs = unpack(cargo)
            result = function(*args, **kwargs)
            if os.getpid() != process:  # a child that the function has forked: the rank is its parent
                os._exit(0)
            self._group.finish()  # peers still need the calls that the function has left in the background
            self._arena.mark_gone(rank, How.RETURNED, "returned from the function")
            report = Report(rank, "returned", "returned", at_ns=time.monotonic_ns(), closed=self._group.closed)
            return report, _pack_result(rank, result)
        except BaseException as error:  # noqa: BLE001  SystemExit too: the parent raises it again, the rank lives on
            if os.getpid() != process:
                _end_child(error)
            at_ns = time.monotonic_ns()
            how = "raised " + "".join(traceback.format_exception_only(error)).strip()
            self._arena.mark_gone(rank, How.RAISED, how.splitlines()[0])
            kind = "waited" if isinstance(error, PeerGone | PeerFailed | WaitTimeout) else "raised"
            text, packed = _pack_error(error)
            return Report(rank, kind, how, text, at_ns), packed

    def leave(self) -> None:
        """Close what this rank has opened."""
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
    """The traceback without this file; and without this package, where the error is not about the package."""
    account = traceback.TracebackException.from_exception(error)
    hidden = _PACKAGE if isinstance(error, UnisonoError) and not isinstance(error, InternalError) else __file__
    link: traceback.TracebackException | None = account
    while link is not None:
        frames = [frame for frame in link.stack if not frame.filename.startswith(hidden)]
        link.stack = traceback.StackSummary.from_list(frames)
        link = link.__cause__ or link.__context__
    return account
