"""Messages by UCX, over TCP, or over RDMA where UCX_TLS asks for it.

What UCX does, and what follows from it:
- A message goes on only while somebody calls it. So whoever waits calls `progress` or `wait`, and compiled code does.
- Short messages leave at once, and UCX keeps what comes before its receive has been posted.
- Tags are of the receiver, whoever sends. So the sender is a part of the tag.
- It asks nobody who he is. So a word that only who reads the job's store can know is the first message each way, and a
  part of it is in all tags: messages of processes that have an old address meet no receive.
- That a peer is gone is told to a function, which `progress` calls. Receives for it stay posted.
- What it gives for a message has to be given back, and not twice; no call may come after its end. So calls of all
  threads are counted, and the last one to leave ends it.
"""

from __future__ import annotations

import ctypes as c
import fcntl
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

from ...base.errors import ArgumentError, InternalError
from ...engine.carrier import Handle, Lost
from ...engine.kernels import kernel
from .ucx_library import (
    FIRST_ERROR,
    IN_PROGRESS,
    OLDEST,
    ON_ERROR,
    ContextParams,
    EndpointParams,
    MessageParams,
    ThreadMode,
    check,
    said,
    ucx_library,
)  # fmt: skip

_TAG_BITS, _RANK_BITS = 30, 18
_ALL_BITS = (1 << 64) - 1
_CONNECT_TAG = (1 << _TAG_BITS) - 1
_PROOF_BYTES = 16
_LAST_S = 5.0
"""How long the last messages may take to leave: of a long one, each waits here until its receive has been posted."""
_SLICE_NS = 5_000_000
"""How long compiled code goes on before it looks whether the carrier has been ended."""
_LAST_CALLS = 64
"""At the end, for what has come: a connection that is closed before all of it is read loses what was sent."""
_SIOCGIFADDR = 0x8915


class EngineWord(IntEnum):
    """What compiled code knows of UCX: functions, their argument, and the status of what is not over."""

    PROGRESS = 0
    ENGINE = 1
    ARM = 2
    DESCRIPTOR = 3
    STATUS = 4
    UNDER_WAY = 5


class UcxCarrier:
    """A worker of UCX, connected to those of some other ranks; all ranks make it at the same time.

    store: where the ranks find each other's addresses. address: this rank's, as the others reach it: UCX listens there,
    and nowhere else. timeout_s: the limit for all connections. peers: whom this rank will have messages for, and these
    for it; all others by default. Raises ImportError where UCX is not installed, or too old; ArgumentError for an
    address at which it cannot listen; Lost for a peer that cannot be reached; RuntimeError for what UCX refuses.
    """

    name = "ucx"
    tags = 1 << _TAG_BITS
    own_thread = False

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        address: str,
        timeout_s: float,
        peers: Iterable[int] | None = None,
    ) -> None:
        self._library = ucx_library()
        self._rank, self._process = rank, os.getpid()
        self._lock = threading.Lock()
        self._over, self._inside, self._worker, self._context = "", 0, 0, 0
        self._lost: dict[int, int] = {}
        """Peers, and the status with which the connections to them have ended."""
        self._under_way: set[_UcxHandle] = set()
        """What UCX may read or write."""
        self._given_up: set[_UcxHandle] = set()
        self._endpoints: dict[int, int] = {}
        self._marks: dict[int, int] = {}
        """What is in the tags of messages to each rank, besides their sender."""
        self._on_error = _teller(self._lost)
        self._params = MessageParams()
        self._how = c.addressof(self._params)
        self._send, self._receive = self._library.ucp_tag_send_nbx, self._library.ucp_tag_recv_nbx
        self._settle, self._wait = kernel("engine_progress.settle"), kernel("engine_progress.wait")
        self._words = (c.c_int64 * len(EngineWord))()
        self._engine = c.addressof(self._words)
        others = sorted({*(range(size) if peers is None else peers)} - {rank})
        try:
            self._make_worker(network_interface(address))
            self._connect(store, others, time.monotonic() + timeout_s)
        except BaseException:
            self._end("this rank could not connect")
            raise

    def isend(self, peer: int, tag: int, data: torch.Tensor) -> _UcxHandle:
        """See `Carrier`."""
        with self._use(peer):
            request = self._send(
                self._endpoints[peer],
                data.data_ptr(),
                data.nbytes,
                self._marks[peer] | self._rank << _TAG_BITS | tag,
                self._how,
            )
            return self._begun(request, peer, data, sends=True)

    def irecv(self, peer: int, tag: int, data: torch.Tensor) -> _UcxHandle:
        """See `Carrier`. What a rank has sent that is gone is still received."""
        with self._use(peer):
            request = self._receive(
                self._worker,
                data.data_ptr(),
                data.nbytes,
                self._marks[self._rank] | peer << _TAG_BITS | tag,
                _ALL_BITS,
                self._how,
            )
            return self._begun(request, peer, data, sends=False)

    def _begun(self, request: int, peer: int, data: torch.Tensor, *, sends: bool) -> _UcxHandle:
        if request >= FIRST_ERROR:
            raise Lost(peer, self._why(peer, request - (1 << 64)))
        handle = _UcxHandle(self, request, peer, data, sends)
        if request:
            self._under_way.add(handle)
        return handle

    def pending(self, messages: Iterable[Handle]) -> list[Handle]:
        """See `Carrier`."""
        return [each for each in messages if not (isinstance(each, _UcxHandle) and self._is_over(each))]

    def settle(self, handle: _UcxHandle) -> None:
        """Wait until a message is over. Raises Lost."""
        waited_ns = 0
        while not self._is_over(handle, _SLICE_NS, waited_ns):
            waited_ns += _SLICE_NS

    def _is_over(self, handle: _UcxHandle, limit_ns: int = 0, waited_ns: int = 0) -> bool:
        """Whether a message is over, at once or after so long. waited_ns: for how long it has been waited for before.
        Raises Lost.
        """
        if handle.request:
            with self._use(handle.peer), handle.lock:  # who gives a request back twice gives another one back
                lost = self._lost.get(handle.peer)
                if handle.request:
                    handle.status = self._settle(handle.request, waited_ns, limit_ns, self._engine)
                if handle.status == IN_PROGRESS:
                    if lost is not None:
                        raise Lost(handle.peer, said(lost))
                    return False
                if handle.request:
                    self._library.ucp_request_free(handle.request)
                    handle.request = 0
                    self._under_way.discard(handle)
        if handle.status:
            raise Lost(handle.peer, self._why(handle.peer, handle.status))
        return True

    def progress(self) -> None:
        """See `Carrier`."""
        with suppress(Lost), self._use(self._rank):
            self._library.ucp_worker_progress(self._worker)

    def wait(self, address: int, goal: int, pairs: int, count: int, waited_ns: int, limit_ns: int) -> int:
        """See `Carrier`."""
        try:
            with self._use(self._rank):
                return self._wait(address, goal, pairs, count, waited_ns, limit_ns, self._engine)
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
        """See `Carrier`. What was sent may leave before, for some seconds. Who still waits for a message of this rank
        then learns that its connection is closed.
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
        if hasattr(self, "_engine"):
            self._end("nobody has this carrier any more")

    @contextmanager
    def _use(self, peer: int) -> Iterator[None]:
        """While UCX is called, for a message from or to that rank."""
        if os.getpid() != self._process:  # before the lock, which another thread may have held when this was forked
            raise InternalError("a forked process has no connections of its own to the ranks of other hosts")
        with self._lock:
            if self._over:
                raise Lost(peer, self._over)
            self._inside += 1
        try:
            yield
        finally:
            self._leave()

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
        """The last one to leave a carrier that is over gives everything back."""
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

    def _why(self, peer: int, status: int) -> str:
        return said(self._lost.get(peer, status))

    def _make_worker(self, interface: str) -> None:
        library, config, context, worker = self._library, c.c_void_p(), c.c_void_p(), c.c_void_p()
        check(library.ucp_config_read(None, None, c.byref(config)), "read its settings")
        try:
            for name, value in (("TLS", "tcp"), ("NET_DEVICES", interface), ("USE_MT_MUTEX", "y")):
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
            raise RuntimeError("this UCX has been built for programs of one thread")
        descriptor = c.c_int()
        check(library.ucp_worker_get_efd(worker, c.byref(descriptor)), "tell when it has something to move")
        functions = library.ucp_worker_progress, library.ucp_worker_arm, library.ucp_request_check_status
        progress, arm, status = (c.cast(function, c.c_void_p).value or 0 for function in functions)
        self._words[:] = [progress, self._worker, arm, descriptor.value, status, IN_PROGRESS]

    def _connect(self, store: Store, peers: Sequence[int], until: float) -> None:
        """Say a word to each peer, which only its own address in the store told, and hear this rank's from it."""
        address, length = c.c_void_p(), c.c_size_t()
        check(self._library.ucp_worker_get_address(self._worker, c.byref(address), c.byref(length)), "tell its address")
        own = secrets.token_bytes(_PROOF_BYTES)
        self._marks[self._rank] = _mark(own)
        store.set(f"ucx {self._rank}", (own + c.string_at(address.value or 0, length.value)).hex())
        self._library.ucp_worker_release_address(self._worker, address)
        messages: list[tuple[torch.Tensor, _UcxHandle]] = []
        for peer in peers:
            key = f"ucx {peer}"
            try:
                store.wait([key], timedelta(seconds=max(0.001, until - time.monotonic())))
                told = bytes.fromhex(store.get(key).decode())
            except (RuntimeError, ValueError):
                raise Lost(peer, "it has told no address") from None
            proof, self._marks[peer] = told[:_PROOF_BYTES], _mark(told)
            self._make_endpoint(peer, told[_PROOF_BYTES:])
            heard = torch.zeros(_PROOF_BYTES, dtype=torch.uint8, device="cpu")
            says = torch.tensor([*proof], dtype=torch.uint8, device="cpu")
            messages.append((heard, self.irecv(peer, _CONNECT_TAG, heard)))
            messages.append((says, self.isend(peer, _CONNECT_TAG, says)))
        for word, handle in messages:
            while not self._is_over(handle, _SLICE_NS):
                if time.monotonic() > until:
                    raise Lost(handle.peer, "it does not answer")
            if not handle.sends and bytes(word.tolist()) != own:
                raise Lost(handle.peer, "another process answers at its address")

    def _make_endpoint(self, peer: int, address: bytes) -> None:
        memory, endpoint = c.create_string_buffer(address, len(address)), c.c_void_p()
        params = EndpointParams(memory, self._on_error)
        params.argument = peer + 1  # 0 would be none
        made = self._library.ucp_ep_create(self._worker, c.byref(params), c.byref(endpoint))
        if made:
            raise Lost(peer, said(made))
        self._endpoints[peer] = endpoint.value or 0


class _UcxHandle:
    """A message under way. request: what UCX calls it; 0: it is over, and `status` says how."""

    __slots__ = ("_carrier", "_data", "lock", "peer", "request", "sends", "status")

    def __init__(self, carrier: UcxCarrier, request: int, peer: int, data: torch.Tensor, sends: bool) -> None:
        self._carrier, self.request, self.peer, self._data, self.sends = carrier, request, peer, data, sends
        self.lock, self.status = threading.Lock(), 0

    def settle(self) -> None:
        """See `Handle`."""
        self._carrier.settle(self)


def _mark(proof: bytes) -> int:
    """What is above rank and tag."""
    return int.from_bytes(proof[:2], "little") << _TAG_BITS + _RANK_BITS


def _teller(lost: dict[int, int]) -> Any:
    """The function that UCX tells of connections that have ended. It holds no carrier: a carrier holds it."""

    def tell(argument: int, _: int, status: int) -> None:
        lost.setdefault(argument - 1, status)

    return ON_ERROR(tell)


def network_interface(address: str) -> str:
    """The network interface whose first address this is: UCX listens at that one only. Raises ArgumentError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))[20:24]
                if socket.inet_ntoa(found) == address:
                    return name
    raise ArgumentError(
        f"UNISONO_CARRIER=ucx, but {address} is the first IPv4 address of no network interface of this host, and UCX "
        "listens at such a one: name MASTER_ADDR by an address in another network, or leave the variable out"
    )
