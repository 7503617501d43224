"""Messages by MPI, for ranks that an MPI has started: through mpi4py, with the network that this MPI knows.

A message goes on only while a thread calls MPI. So a thread that waits calls `progress`. `settle` asks MPI again and
again, so that it ends when the carrier is aborted. When a rank dies, an MPI ends the whole job.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch

from ...engine.carrier import Handle, Lost

_NAP_S = 20e-6


class MpiCarrier:
    """A communicator of this library's own, of all ranks of MPI; all of them make it at the same time.

    It has the ranks of MPI.COMM_WORLD. Needs mpi4py, and raises ImportError without it.
    """

    name = "mpi"
    own_thread = False
    wait = compiled = None

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._communicator = MPI.COMM_WORLD.Dup()
        self._communicator.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self._communicator.rank, self._communicator.size
        most: Any = self._communicator.Get_attr(MPI.TAG_UB)
        self.tags = min(1 << 30, most)
        self._lock = threading.Lock()
        self._under_way: set[_MpiHandle] = set()
        self.over = ""
        atexit.register(self._keep)

    def isend(self, peer: int, tag: int, data: torch.Tensor) -> _MpiHandle:
        return self._begin(self._communicator.Isend, peer, tag, data)

    def irecv(self, peer: int, tag: int, data: torch.Tensor) -> _MpiHandle:
        return self._begin(self._communicator.Irecv, peer, tag, data)

    def _begin(self, call: Any, peer: int, tag: int, data: torch.Tensor) -> _MpiHandle:
        with self._lock:
            if self.over:
                raise Lost(peer, self.over)
            try:
                handle = _MpiHandle(self, call([data.numpy(), self._mpi.BYTE], peer, tag), peer, data)
            except self._mpi.Exception as error:
                raise Lost(peer, str(error)) from None
            self._under_way.add(handle)
            return handle

    def test(self, handle: _MpiHandle) -> bool:
        """Whether a message is over. Raises Lost."""
        with self._lock:
            try:
                over = bool(handle.request.Test())
            except self._mpi.Exception as error:
                raise Lost(handle.peer, str(error)) from None
            if over:
                self._under_way.discard(handle)
            return over

    def _keep(self) -> None:
        """Never free the memory of messages under way: MPI ends after Python, and moves messages until then."""
        for handle in self._under_way:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))

    def pending(self, messages: Iterable[Handle]) -> list[Handle]:
        return [each for each in messages if not (isinstance(each, _MpiHandle) and self.test(each))]

    def progress(self) -> None:
        with self._lock:
            self._communicator.Iprobe()

    def give_up(self, messages: Iterable[Handle]) -> None:
        """See `Carrier`. Does nothing: all messages under way are kept, and `close` waits for none."""

    def abort(self) -> None:
        """See `Carrier`. The peers do not see it."""
        self.over = self.over or "this rank has aborted its messages"

    def close(self) -> None:
        self.over = self.over or "this rank has closed its carrier"


class _MpiHandle:
    """A message under way."""

    __slots__ = ("_carrier", "_data", "peer", "request")

    def __init__(self, carrier: MpiCarrier, request: Any, peer: int, data: torch.Tensor) -> None:
        self._carrier, self.request, self.peer, self._data = carrier, request, peer, data

    def settle(self) -> None:
        while not self._carrier.test(self):
            if self._carrier.over:
                raise Lost(self.peer, self._carrier.over)
            time.sleep(_NAP_S)
