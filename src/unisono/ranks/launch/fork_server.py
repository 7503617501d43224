"""The process that ranks are forked from: it imports everything once, so that a new rank takes milliseconds.

One fork server serves one parent process. It has no threads, starts no collective and runs no user's code, so forking
it is safe. Each rank has a line of its own between parent and server:

    parent -> server   one more rank, with the rank's end of its channel to the parent, and the server's end of the line
    server -> parent   on the line: ["forked", pid] or ["refused", why], at the end ["ended", wait status]

It speaks by `Channel`: nothing is unpickled here.

When a rank's line ends, the server kills the rank. When the parent ends, it kills all ranks and leaves. When the server
dies, the kernel kills its ranks. So no process is left behind, whichever process is killed. A rank leads a process
group: its children, such as the workers of a DataLoader, are killed with it, or after it if it does not end well.
"""

import atexit
import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

import unisono

from ...base.fd_channel import ANY_LENGTH, Channel
from ...base.python import no_collections

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_MOST_TEXT = 8_000
"""Characters of a traceback that the parent gets: the end of the traceback. They fit into a plain message."""


def main(fd: int, parent_pid: int, also: Sequence[str] = ()) -> None:
    """Serve the parent at the other end of this socket; in each forked rank, run that rank's loop instead.

    also: modules to load that ranks will need.
    """
    parent = Channel(socket.socket(fileno=fd))
    parent_watch = os.pidfd_open(parent_pid)
    # Until the server listens, it ends with the parent's thread that waits for it.
    _die_with_parent(signal.SIGKILL)
    if os.getppid() != parent_pid or parent.peer.pid != parent_pid:
        return  # the parent has gone, and its number may be another process's; or the socket is not the parent's
    try:
        with no_collections():
            from ...engine.rank import interpreter, warm_up
            from .rank_process import serve_parent

            for name in unisono.__all__:
                getattr(unisono, name)  # loads the module that has it, so no rank has to
            for name in also:
                importlib.import_module(name)
            interpreter()
            warm_up()
            gc.freeze()  # collections in the ranks then leave the shared pages alone
    except Exception:  # noqa: BLE001  the parent shows every exception
        parent.send(("failed", traceback.format_exc()[-_MOST_TEXT:]))
        return
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]  # noqa: SLF001
        finalizer.atexit = False  # ranks do not clean up after this process's imports
    _die_with_parent(0)
    with suppress(ConnectionError):  # the parent has gone: it will notice at once
        parent.send(("ready", os.getpid()))
    channel = _ForkServer(parent, parent_watch).serve()
    if channel is None:
        os._exit(0)  # a finalization takes time, and this process needs none
    serve_parent(channel)
    end_process(0)


def _die_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when the thread that has started it ends; 0: none."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def end_process(code: int) -> NoReturn:
    """End a forked process as multiprocessing does: a full finalization would first copy every page that it frees."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # it may be closed, or None
            stream.flush()
    os._exit(code)


class _ForkServer:
    def __init__(self, parent: Channel, parent_watch: int) -> None:
        self._parent = parent
        self._lines: dict[int, Channel] = {}  # pid -> line, of the ranks that live and are to live on
        self._selector = selectors.DefaultSelector()
        self._selector.register(parent, selectors.EVENT_READ, self._on_parent)
        self._selector.register(parent_watch, selectors.EVENT_READ, self._end)
        self._leave = False

    def serve(self) -> Channel | None:
        """Fork ranks until the parent goes. In a forked rank, return that rank's channel to the parent at once."""
        while not self._leave:
            for key, _ in self._selector.select():
                control: Channel | None = key.data()
                if control is not None:
                    return control
        for pid in self._lines:
            _kill_group(pid)
        for pid in self._lines:
            os.waitpid(pid, 0)
        return None

    def _end(self) -> None:
        self._leave = True

    def _on_parent(self) -> Channel | None:
        try:
            while (message := self._parent.poll()) is not None:
                control, line = (socket.socket(fileno=fd) for fd in message.fds)
                if (mine := self._fork(Channel(control, ANY_LENGTH), Channel(line))) is not None:
                    return mine
        except EOFError:
            self._end()
        return None

    def _fork(self, control: Channel, line: Channel) -> Channel | None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _tell(line, ("refused", str(error)))
            return None
        if pid == 0:
            _die_with_parent(signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)  # the server died before the line above
            os.setpgid(0, 0)
            line.close()
            self._abandon()
            return control
        control.close()
        with suppress(OSError):  # the rank does so, too: one of the two is first
            os.setpgid(pid, pid)
        self._lines[pid] = line
        watch = os.pidfd_open(pid)
        self._selector.register(line, selectors.EVENT_READ, partial(self._on_line, pid))
        self._selector.register(watch, selectors.EVENT_READ, partial(self._on_end, pid, line, watch))
        _tell(line, ("forked", pid))
        return None

    def _on_line(self, pid: int) -> None:
        """The parent needs this rank no more: it says nothing else on the line."""
        if (line := self._lines.pop(pid, None)) is not None:
            self._selector.unregister(line)
            _kill_group(pid)

    def _on_end(self, pid: int, line: Channel, watch: int) -> None:
        self._selector.unregister(watch)
        os.close(watch)
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if end is None or (end.si_code, end.si_status) != (os.CLD_EXITED, 0):
            _kill_group(pid)  # before the number is free for another process
        _, status = os.waitpid(pid, 0)
        if self._lines.pop(pid, None) is not None:
            self._selector.unregister(line)
        _tell(line, ("ended", status))
        line.close()

    def _abandon(self) -> None:
        """In a new rank: close every descriptor that is the fork server's."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, Channel):
                key.fileobj.close()
            else:
                os.close(key.fd)
        self._selector.close()


def _tell(line: Channel, message: object) -> None:
    with suppress(OSError):  # the parent listens no more
        line.send(message)


def _kill_group(pid: int) -> None:
    with suppress(OSError):  # no process is left in it that may be killed
        os.killpg(pid, signal.SIGKILL)
