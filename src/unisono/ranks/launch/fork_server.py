"""The process that ranks are forked from: it imports everything once, so that a new rank takes milliseconds.

One fork server serves one parent process. It has no threads, starts no collective and runs no user's code, so forking
it is safe. Each world has a connection of its own:

    parent -> server   the rank number, with the rank's end of its channel to the parent
    server -> parent   ["opened"] · ["forked", rank, pid] · ["refused", rank, why] · ["ended", rank, wait status]

It speaks by `PlainChannel`: nothing is unpickled here.

When a world's connection ends, the server kills the world's ranks. When the parent ends, it kills all ranks and leaves.
When the server dies, the kernel kills its ranks. So no process is left behind, whichever process is killed. A rank
leads a process group: its children, such as the workers of a DataLoader, are killed with it, or after it if it does
not end well.
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
from dataclasses import dataclass, field
from typing import NoReturn

import unisono

from ...base.fd_channel import Channel, PlainChannel
from ...base.python import no_collections

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_MOST_TEXT = 8_000
"""Characters of a traceback that the parent gets: the end of the traceback. They fit into a plain message."""


def main(fd: int, parent_pid: int, also: Sequence[str] = ()) -> None:
    """Serve the parent at the other end of this socket; in each forked rank, run that rank's loop instead.

    also: modules to load that ranks will need.
    """
    parent = PlainChannel(socket.socket(fileno=fd))
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


@dataclass(eq=False)
class _World:
    channel: Channel
    children: dict[int, int] = field(default_factory=dict)  # pid -> rank, of the ranks that live
    open: bool = True


class _ForkServer:
    def __init__(self, parent: Channel, parent_watch: int) -> None:
        self._parent = parent
        self._worlds: set[_World] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(parent, selectors.EVENT_READ, self._on_parent)
        self._selector.register(parent_watch, selectors.EVENT_READ, self._on_parent_death)
        self._leave = False

    def serve(self) -> Channel | None:
        """Fork ranks until the parent goes. In a forked rank, return that rank's channel to the parent at once."""
        while not self._leave:
            for key, _ in self._selector.select():
                control: Channel | None = key.data(key.fileobj)
                if control is not None:
                    return control
        for world in self._worlds:
            self._kill(world)
            for pid in world.children:
                os.waitpid(pid, 0)
        return None

    def _on_parent_death(self, _watch: int) -> None:
        self._leave = True

    def _on_parent(self, parent: Channel) -> None:
        try:
            while (message := parent.poll()) is not None:
                self._open(_World(PlainChannel(socket.socket(fileno=message.fds[0]))))
        except EOFError:
            self._leave = True

    def _open(self, world: _World) -> None:
        self._worlds.add(world)
        self._selector.register(world.channel, selectors.EVENT_READ, lambda _: self._on_world(world))
        self._tell(world, ("opened",))

    def _on_world(self, world: _World) -> Channel | None:
        try:
            while (message := world.channel.poll()) is not None:
                control = self._fork(world, message.value, Channel(socket.socket(fileno=message.fds[0])))
                if control is not None:
                    return control
        except EOFError:
            self._selector.unregister(world.channel)
            world.open = False
            self._kill(world)
            self._forget_if_over(world)
        return None

    def _fork(self, world: _World, rank: int, control: Channel) -> Channel | None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(world, ("refused", rank, str(error)))
            return None
        if pid == 0:
            _die_with_parent(signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)  # the server died before the line above
            os.setpgid(0, 0)
            self._abandon()
            return control
        control.close()
        with suppress(OSError):  # the rank does so, too: one of the two is first
            os.setpgid(pid, pid)
        world.children[pid] = rank
        watch = os.pidfd_open(pid)
        self._selector.register(watch, selectors.EVENT_READ, lambda _: self._on_end(world, pid, watch))
        self._tell(world, ("forked", rank, pid))
        return None

    def _on_end(self, world: _World, pid: int, watch: int) -> None:
        self._selector.unregister(watch)
        os.close(watch)
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if end is None or (end.si_code, end.si_status) != (os.CLD_EXITED, 0):
            _kill_group(pid)  # before the number is free for another process
        _, status = os.waitpid(pid, 0)
        self._tell(world, ("ended", world.children.pop(pid), status))
        self._forget_if_over(world)

    def _tell(self, world: _World, message: object) -> None:
        with suppress(OSError):  # the parent listens no more; the end of the connection follows
            world.channel.send(message)

    def _kill(self, world: _World) -> None:
        for pid in world.children:
            _kill_group(pid)

    def _forget_if_over(self, world: _World) -> None:
        if not world.open and not world.children:
            world.channel.close()
            self._worlds.remove(world)

    def _abandon(self) -> None:
        """In a new rank: close every descriptor that is the fork server's."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, Channel):
                key.fileobj.close()
            else:
                os.close(key.fd)
        for world in self._worlds:
            world.channel.close()
        self._selector.close()


def _kill_group(pid: int) -> None:
    with suppress(OSError):  # no process is left in it that may be killed
        os.killpg(pid, signal.SIGKILL)
