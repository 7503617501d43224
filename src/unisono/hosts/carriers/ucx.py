"""Messages by UCX, over TCP, or over RDMA where UCX_TLS asks for it.

What UCX does, and what follows from it:
- A message goes on only while a thread calls UCX. So a thread that waits calls `progress` or `wait`, or runs compiled
  code that calls UCX.
- Short messages leave at once. UCX keeps a message that comes before its receive has been posted.
- A tag meets messages of any sender. So the sender is a part of the tag.
- It does not check the process at the other end. So the first message each way is a word that only readers of the job's
  store know. A part of the word is in all tags: messages of processes with an old address meet no receive.
- If a peer has gone, `progress` calls a function. Receives for the peer stay posted.
- The request of a message must be given back once, and not twice. No call may come after UCX's end. So calls of all
  threads are counted, and the last one to leave ends UCX.
"""

from __future__ import annotations

import ctypes as c
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from ...base.errors import ArgumentError, InternalError
from ...base.python import nap
from ...engine.carrier import Handle, Lost
from ...engine.clock import slow_yield_cycles
from ...engine.compile.program import TransportWord
from ...engine.kernels import kernel
from ..addresses import network_interface
from .mover import Mover
from .ucx_library import (
    FIRST_ERROR,
    IN_PROGRESS,
    OLDEST,
    ON_ERROR,
    PROOF_BYTES,
    ContextParams,
    EndpointParams,
    MessageParams,
    ThreadMode,
    check,
    entry,
    read_entry,
    said,
    ucx_library,
)  # fmt: skip

_TAG_BITS, _RANK_BITS = 42, 14
_ALL_BITS = (1 << 64) - 1
_CONNECT_TAG = (1 << _TAG_BITS) - 1
_FIRST_S, _LONGEST_S = 0.001, 0.02  # the first and the longest pause between two questions to the store
_LAST_S = 5.0  # how long the last messages may take to leave: a long one waits until its receive has been posted
_SLICE_NS = 5_000_000  # how long compiled code goes on before it looks whether the carrier has been ended
_LAST_CALLS = 64
"""Calls at the end, for messages that have come: if a connection closes before all is read, sent messages are lost."""

_unconnected: list[UcxCarrier] = []
"""The last carrier that could not connect, with its sockets: UCX 1.22 aborts peers that it leaves as they connect."""


class UcxCarrier:
    """A worker of UCX, connected to workers of all other ranks; all ranks make it at the same time.

    store: of torch, where the ranks find each other's addresses; or what has the same `set`, `check` and `get`.
    address: this rank's address, at which the others reach it: UCX listens there, and nowhere else.
    timeout_s: the limit for all connections.
    look: called now and then while this rank connects; may raise.

    Raises NoUcx if UCX is not installed, or too old; ArgumentError for an address at which it cannot listen, and for an
    entry at the store that no rank has written; Lost for a peer that cannot be reached; RuntimeError if UCX refuses a
    call.
    """

    tags = 1 << _TAG_BITS

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        address: str,
        timeout_s: float,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        if size > 1 << _RANK_BITS:
            raise ArgumentError(
                f"size: got {size} ranks, expected at most {1 << _RANK_BITS} in a world over several hosts"
            )
        self._library = ucx_library()
        self._rank, self._process = rank, os.getpid()
        self._lock = threading.Lock()
        self._over, self._inside, self._worker, self._context = "", 0, 0, 0
        self._lost: dict[int, int] = {}  # peer -> the status with which the connection to it has ended
        self._under_way: set[_UcxHandle] = set()  # the messages that UCX may read or write
        self._given_up: set[_UcxHandle] = set()
        self._mover: Mover | None = None
        self._endpoints: dict[int, int] = {}
        self._marks: dict[int, int] = {}  # rank -> the part of the tags of messages to it that is not the sender
        self._on_error = _teller(self._lost)
        self._params = MessageParams()
        self._how = c.addressof(self._params)
        self._send, self._receive = self._library.ucp_tag_send_nbx, self._library.ucp_tag_recv_nbx
        self._settle, self._wait = kernel("transport_progress.settle"), kernel("transport_progress.wait")
        self._words = (c.c_int64 * TransportWord.WORDS)()
        self.transport, self.users = c.addressof(self._words), set[Any]()
        others = [peer for peer in range(size) if peer != rank]
        try:
            self._make_worker(address)
            self._connect(store, others, time.monotonic() + timeout_s, look)
        except BaseException:
            _unconnected[:] = [self]
            raise

    def isend(self, peer: int, tag: int, data: torch.Tensor) -> _UcxHandle:
        with self._use(peer):
            full, endpoint = self.route(peer, tag, sends=True)
            request = self._send(endpoint, data.data_ptr(), data.nbytes, full, self._how)
            return self._begun(request, peer, data, sends=True)

    def irecv(self, peer: int, tag: int, data: torch.Tensor) -> _UcxHandle:
        """See `Carrier`. Messages of a rank that has gone are still received."""
        with self._use(peer):
            full, _ = self.route(peer, tag, sends=False)
            request = self._receive(self._worker, data.data_ptr(), data.nbytes, full, _ALL_BITS, self._how)
            return self._begun(request, peer, data, sends=False)

    def route(self, peer: int, tag: int, *, sends: bool) -> tuple[int, int]:
        sender, reader = (self._rank, peer) if sends else (peer, self._rank)
        return self._marks[reader] | sender << _TAG_BITS | tag, self._endpoints.get(peer, 0)

    def run(self, kernel: Callable[..., int], arguments: tuple[int, ...], peer: int) -> int:
        self._enter(peer)
        try:
            return kernel(*arguments)
        finally:
            self._leave()

    def adopt(self, request: int, peer: int, data: torch.Tensor, *, sends: bool) -> _UcxHandle:
        with self._use(peer):
            return self._begun(request, peer, data, sends=sends)

    def lost(self, peer: int, status: int) -> Lost:
        return Lost(peer, said(self._lost.get(peer, status)))

    def _begun(self, request: int, peer: int, data: torch.Tensor, *, sends: bool) -> _UcxHandle:
        if request >= FIRST_ERROR:
            raise self.lost(peer, request - (1 << 64))
        handle = _UcxHandle(self, request, peer, data, sends)
        if request:
            self._under_way.add(handle)
        return handle

    def pending(self, messages: Iterable[Handle]) -> list[Handle]:
        return [each for each in messages if not (isinstance(each, _UcxHandle) and self._is_over(each))]

    def keep_moving(self, messages: Iterable[Handle]) -> None:
        if os.getpid() != self._process:
            return
        if self._mover is None:
            self._mover = Mover(weakref.proxy(self))
        self._mover.add(messages)

    def settle(self, handle: _UcxHandle) -> None:
        """Wait until a message is over. Raises Lost."""
        waited_ns = 0
        while not self._is_over(handle, _SLICE_NS, waited_ns):
            waited_ns += _SLICE_NS

    def _is_over(self, handle: _UcxHandle, limit_ns: int = 0, waited_ns: int = 0) -> bool:
        """Whether a message is over, at most after limit_ns. waited_ns: how long the caller has waited for it before.
        Raises Lost.
        """
        if handle.request:
            with self._use(handle.peer), handle.lock:  # to give a request back twice would give back another request
                lost = self._lost.get(handle.peer)
                if handle.request:
                    handle.status = self._settle(handle.request, waited_ns, limit_ns, self.transport, 0, 0)
                if handle.status == IN_PROGRESS:
                    if lost is not None:
                        raise Lost(handle.peer, said(lost))
                    return False
                if handle.request:
                    self._library.ucp_request_free(handle.request)
                    handle.request = 0
                    self._under_way.discard(handle)
        if handle.status:
            raise self.lost(handle.peer, handle.status)
        return True

    @property
    def owes(self) -> bool:
        return bool(self._given_up)

    def progress(self) -> None:
        with suppress(Lost), self._use(self._rank):
            self._library.ucp_worker_progress(self._worker)

    def wait(self, address: int, goal: int, pairs: int, count: int, waited_ns: int, limit_ns: int) -> int:
        try:
            with self._use(self._rank):
                return self._wait(address, goal, pairs, count, waited_ns, limit_ns, self.transport)
        except Lost:
            time.sleep(min(limit_ns, _SLICE_NS) / 1e9)
            return 0

    def give_up(self, messages: Iterable[Handle]) -> None:
        """See `Carrier`. Receives are taken back, unless their messages are coming in."""
        given_up = [each for each in messages if isinstance(each, _UcxHandle)]
        with suppress(Lost), self._use(self._rank):
            for handle in given_up:
                with handle.lock:
                    if handle.request and not handle.sends:
                        self._library.ucp_request_cancel(self._worker, handle.request)
        for handle in [*self._given_up, *given_up]:
            with suppress(Lost):
                self._is_over(handle)
            (self._given_up.add if handle.request else self._given_up.discard)(handle)

    def abort(self) -> None:
        """See `Carrier`. The peers see that the connections end."""
        self._end("this rank has aborted its messages")

    def close(self) -> None:
        """See `Carrier`. Sent messages may leave before, for some seconds. Then ranks that still wait for messages of
        this rank learn that the connection is closed.
        """
        until = time.monotonic() + _LAST_S
        if os.getpid() == self._process:
            last = [handle for handle in list(self._under_way) if handle.sends and handle not in self._given_up]
            for handle in last:
                with suppress(Lost):
                    while not (self._is_over(handle, _SLICE_NS) or time.monotonic() > until):
                        pass
        self._end("this rank has closed its carrier")

    def __del__(self) -> None:
        if hasattr(self, "transport") and not sys.is_finalizing():
            self._end("the carrier is no longer in use")

    @contextmanager
    def _use(self, peer: int) -> Iterator[None]:
        """Hold this while UCX is called, for a message from or to this peer."""
        self._enter(peer)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, peer: int) -> None:
        if os.getpid() != self._process:  # before the lock, which another thread may have held when this was forked
            raise InternalError("a forked process cannot use the connections of its parent to other hosts")
        with self._lock:
            if self._over:
                raise Lost(peer, self._over)
            self._inside += 1

    def _end(self, why: str) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._over:
                return
            self._over = why
            self._inside += 1
        self._leave()

    def _leave(self) -> None:
        """The last thread to leave a carrier that is over frees its resources."""
        with self._lock:
            self._inside -= 1
            if self._inside or not self._over:
                return
            (worker, self._worker), (context, self._context) = (self._worker, 0), (self._context, 0)
        if worker:
            for _ in range(_LAST_CALLS):
                if not self._library.ucp_worker_progress(worker):
                    break
            self._library.ucp_worker_destroy(worker)
        if context:
            self._library.ucp_cleanup(context)
        self._under_way.clear()
        self.users.clear()

    def _make_worker(self, address: str) -> None:
        library, descriptor, config, context, worker = self._library, c.c_int(), *(c.c_void_p() for _ in range(3))
        interface = network_interface(address)
        # The sentinel judges which hosts are there. TCP itself would give up an idle connection after six seconds.
        settings = {"TLS": "tcp", "NET_DEVICES": interface, "USE_MT_MUTEX": "y", "TCP_KEEPIDLE": "inf"}
        if ":" in address:
            settings["TCP_AF_PRIO"] = "inet6"
        check(library.ucp_config_read(None, None, c.byref(config)), "read its settings")
        try:
            for name, value in settings.items():
                if f"UCX_{name}" not in os.environ:
                    check(library.ucp_config_modify(config, name.encode(), value.encode()), f"set {name}={value}")
            params = ContextParams()
            check(library.ucp_init_version(*OLDEST, c.byref(params), config, c.byref(context)), f"use {interface}")
        finally:
            library.ucp_config_release(config)
        self._context = context.value or 0
        mode, granted = ThreadMode(), ThreadMode()
        check(library.ucp_worker_create(context, c.byref(mode), c.byref(worker)), f"use {interface}")
        self._worker = worker.value or 0
        check(library.ucp_worker_query(worker, c.byref(granted)), "tell what it can do")
        if granted.mode != ThreadMode.MANY:
            raise RuntimeError("this UCX was built without support for threads")
        check(library.ucp_worker_get_efd(worker, c.byref(descriptor)), "tell when it has something to move")
        functions = {
            TransportWord.PROGRESS: library.ucp_worker_progress,
            TransportWord.ARM: library.ucp_worker_arm,
            TransportWord.STATUS: library.ucp_request_check_status,
            TransportWord.SEND: library.ucp_tag_send_nbx,
            TransportWord.RECEIVE: library.ucp_tag_recv_nbx,
            TransportWord.FREE: library.ucp_request_free,
        }
        facts = {
            TransportWord.WORKER: self._worker,
            TransportWord.DESCRIPTOR: descriptor.value,
            TransportWord.UNDER_WAY: IN_PROGRESS,
            TransportWord.HOW: self._how,
            TransportWord.FIRST_ERROR: FIRST_ERROR - (1 << 64),
            TransportWord.SLOW_YIELD_CYCLES: slow_yield_cycles(),
        }
        facts |= {place: c.cast(function, c.c_void_p).value or 0 for place, function in functions.items()}
        for place, fact in facts.items():
            self._words[place] = fact

    def _connect(self, store: Any, peers: Sequence[int], until: float, look: Callable[[], object]) -> None:
        """Send each peer the word from its entry in the store, and receive this rank's own word from it."""
        address, length = c.c_void_p(), c.c_size_t()
        check(self._library.ucp_worker_get_address(self._worker, c.byref(address), c.byref(length)), "tell its address")
        own = secrets.token_bytes(PROOF_BYTES)
        self._marks[self._rank] = _mark(own)
        store.set(f"ucx {self._rank}", entry(own, c.string_at(address.value or 0, length.value)))
        self._library.ucp_worker_release_address(self._worker, address)
        messages: list[tuple[torch.Tensor, _UcxHandle]] = []
        for peer in peers:
            key, began = f"ucx {peer}", time.monotonic()
            while not store.check([key]):  # a `wait` would keep this process's other threads from the store
                look()
                if time.monotonic() > until:
                    raise Lost(peer, "it has published no address")
                nap(began, _FIRST_S, _LONGEST_S)
            proof, address_of_peer = read_entry(peer, bytes(store.get(key)))
            self._marks[peer] = _mark(proof)
            look()
            self._make_endpoint(peer, address_of_peer)
            heard = torch.zeros(PROOF_BYTES, dtype=torch.uint8, device="cpu")
            says = torch.tensor([*proof], dtype=torch.uint8, device="cpu")
            messages.append((heard, self.irecv(peer, _CONNECT_TAG, heard)))
            messages.append((says, self.isend(peer, _CONNECT_TAG, says)))
        for word, handle in messages:
            while not self._is_over(handle, _SLICE_NS):
                look()
                if time.monotonic() > until:
                    raise Lost(handle.peer, "it does not respond")
            if not handle.sends and bytes(word.tolist()) != own:
                raise Lost(handle.peer, "another process answers at its address")

    def _make_endpoint(self, peer: int, address: bytes) -> None:
        memory, endpoint = c.create_string_buffer(address, len(address)), c.c_void_p()
        params = EndpointParams(memory, self._on_error)
        params.argument = peer + 1  # 0 means no argument
        if made := self._library.ucp_ep_create(self._worker, c.byref(params), c.byref(endpoint)):
            raise Lost(peer, said(made))
        self._endpoints[peer] = endpoint.value or 0


class _UcxHandle:
    """A message under way. request: UCX's request; 0: the message is over, and `status` says how."""

    __slots__ = ("_carrier", "_data", "lock", "peer", "request", "sends", "status")

    def __init__(self, carrier: UcxCarrier, request: int, peer: int, data: torch.Tensor, sends: bool) -> None:
        self._carrier, self.request, self.peer, self._data, self.sends = carrier, request, peer, data, sends
        self.lock, self.status = threading.Lock(), 0

    def settle(self) -> None:
        self._carrier.settle(self)


def _mark(proof: bytes) -> int:
    """The bits of a tag above rank and tag."""
    return proof[0] << _TAG_BITS + _RANK_BITS


def _teller(lost: dict[int, int]) -> Any:
    """The function that UCX calls for connections that have ended. It holds no carrier: a carrier holds it."""

    def tell(argument: int, _: int, status: int) -> None:
        lost.setdefault(argument - 1, status)

    return ON_ERROR(tell)
