"""Messages by UCX: what happens when they do not come, and habits that are off. Calls use it elsewhere."""

import copy
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import psutil
import pytest
import torch
from torch.distributed import HashStore, Store, TCPStore

from tests.support.programs import run_python
from tests.support.waiting import until
from unisono import ArgumentError
from unisono.base.errors import InternalError
from unisono.engine.carrier import Lost
from unisono.hosts.addresses import network_interface
from unisono.hosts.carriers import ucx
from unisono.hosts.carriers import ucx_library as library
from unisono.hosts.carriers.ucx import UcxCarrier

HERE, LATE_S = "127.0.0.1", 20.0


def word(value: int = 0, nbytes: int = 8) -> torch.Tensor:
    return torch.full((nbytes,), value, dtype=torch.uint8)


def connected() -> list[UcxCarrier]:
    """Two ranks of one process."""
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: UcxCarrier(store, rank, 2, HERE, LATE_S), range(2)))


@contextmanager
def pair() -> Iterator[list[UcxCarrier]]:
    """The same, closed in the end, which may take both of them."""
    carriers = connected()
    try:
        yield carriers
    finally:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(UcxCarrier.close, carriers))


def exchange(carriers: list[UcxCarrier], tag: int, nbytes: int) -> None:
    """A message each way, and whether it is the right one."""
    sent = [torch.randint(256, (nbytes,), dtype=torch.uint8) for _ in carriers]
    got = [word(0, nbytes) for _ in carriers]
    handles = [carrier.irecv(1 - rank, tag, got[rank]) for rank, carrier in enumerate(carriers)]
    handles += [carrier.isend(1 - rank, tag, sent[rank]) for rank, carrier in enumerate(carriers)]
    finish(carriers, handles)
    assert got[0].equal(sent[1])
    assert got[1].equal(sent[0])


def finish(carriers: list[UcxCarrier], handles: list[Any]) -> None:
    until = time.monotonic() + LATE_S
    while handles:
        for carrier in carriers:
            carrier.progress()
        handles = [handle for handle in handles if handle._carrier.pending([handle])]
        assert time.monotonic() < until


ALONE = """
import ctypes, os
from torch.distributed import HashStore
from unisono.hosts.carriers.ucx import UcxCarrier

libc = ctypes.CDLL(None)

def state():
    signals = [line for line in open("/proc/self/status") if line.startswith("Sig") and "SigQ" not in line]
    names = "mmap", "munmap", "mremap", "madvise", "brk", "sbrk", "shmat", "shmdt", "malloc", "free"
    code = {name: ctypes.string_at(ctypes.cast(getattr(libc, name), ctypes.c_void_p).value, 16) for name in names}
    return signals, code, dict(os.environ)

before = state()
carrier = UcxCarrier(HashStore(), 0, 1, "127.0.0.1", 5.0)
assert state() == before, [new for new, old in zip(state(), before) if new != old]
carrier.close()
assert state() == before
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_process_state_is_left_alone() -> None:
    """Also in a forked child, which ends as processes do."""
    environment = {**os.environ, "UCX_HANDLE_ERRORS": "bt", "UCX_MEM_EVENTS": "y"}
    done = run_python("-c", ALONE, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def sockets(status: str) -> set[Any]:
    return {each for each in psutil.Process().net_connections("tcp") if each.status == status}


def test_it_listens_at_its_own_address_only() -> None:
    before = sockets(psutil.CONN_LISTEN)
    with pair():
        new = sockets(psutil.CONN_LISTEN) - before
        assert [each.laddr.ip for each in new] == [HERE] * 2
    assert not sockets(psutil.CONN_LISTEN) & new


def test_idle_connections_are_not_given_up() -> None:
    """By default, UCX lets TCP end a connection whose link is cut for six seconds; a job may allow longer cuts."""
    before = sockets(psutil.CONN_ESTABLISHED)
    with pair():
        new = sockets(psutil.CONN_ESTABLISHED) - before
        assert new
        for each in new:
            with socket.socket(fileno=os.dup(each.fd)) as kept:
                assert not kept.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_unconnected_carrier_listens_until_next() -> None:
    """A peer that connects to it at this moment would be aborted by UCX."""
    before, ports = sockets(psutil.CONN_LISTEN), set[Any]()
    for _ in range(3):
        with pytest.raises(Lost, match="published no address"):
            UcxCarrier(HashStore(), 0, 2, HERE, 0.01)
        gc.collect()
        (new,) = sockets(psutil.CONN_LISTEN) - before
        assert new.laddr not in ports
        ports = {new.laddr}


def test_an_address_of_no_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the second one of an interface."""
    assert network_interface(HERE) == "lo"
    with pytest.raises(ArgumentError, match=r"192\.0\.2\.1, which is not the first address of a network interface"):
        network_interface("192.0.2.1")
    two = [SimpleNamespace(family=socket.AF_INET, address=f"192.0.2.{k}") for k in (1, 2)]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": two})
    assert network_interface("192.0.2.1") == "eth0"
    with pytest.raises(ArgumentError, match=r"192\.0\.2\.2, which is not the first"):
        network_interface("192.0.2.2")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("_place", lambda: "/nowhere/libucp.so.0", "/nowhere/libucp.so.0"),
     ("OLDEST", (99, 0), r"is UCX 1\.[0-9.]+, expected 99\.0")],
)  # fmt: skip
def test_missing_or_old_library_is_refused(name: str, value: Any, words: str) -> None:
    library.ucx_library.cache_clear()
    said = rf"cannot be used here \(.*{words}.*\): pip install 'unisono\[hosts\]'"
    with patch.object(library, name, value), pytest.raises(library.NoUcx, match=said) as raised:
        UcxCarrier(HashStore(), 0, 2, HERE, LATE_S)
    library.ucx_library.cache_clear()
    assert str(copy.copy(raised.value)) == str(raised.value), "it is pickled in the same way"


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_many_messages_leave_nothing_behind(count: int) -> None:
    lengths, batch, source = (8, 0, 1_000, 9_001, 3, 8), 50, torch.randint(256, (1 << 20,)).to(torch.uint8)
    kept, began = WeakSet[torch.Tensor](), 0
    with pair() as (first, second):
        for turn in range(count // batch):
            if turn == 30:
                began = psutil.Process().memory_info().rss
            sent = [source[turn * 7 + k :][: lengths[(turn + k) % len(lengths)]] for k in range(batch)]
            if turn % 5 == 0:
                sent[turn % batch] = source[: 70_000 if turn % 3 else 1 << 20]
            got = [word(0, len(each)) for each in sent]
            handles: list[Any] = [first.isend(1, turn * batch + k, sent[k]) for k in range(turn % batch)]
            handles += [second.irecv(0, turn * batch + k, got[k]) for k in range(batch)]
            handles += [first.isend(1, turn * batch + k, sent[k]) for k in range(turn % batch, batch)]
            finish([first, second], handles)
            assert all(map(torch.equal, got, sent))
            kept.update(sent + got)
        del sent, got, handles
        gc.collect()
        assert not kept
        assert psutil.Process().memory_info().rss < began + (32 << 20)


def test_data_lives_until_it_is_sent() -> None:
    with pair() as carriers:
        carriers[0].isend(1, 1, word(7, 4 << 20))
        gc.collect()
        others = [word(9, 4 << 20) for _ in range(4)]
        got = word(0, 4 << 20)
        finish(carriers, [carriers[1].irecv(0, 1, got)])
        assert bool((got == 7).all()), len(others)


def test_many_threads() -> None:
    """Each sends and receives on its own, and all of them move the messages of all."""
    with pair() as carriers:

        def run(number: int) -> None:
            for turn in range(200):
                exchange(carriers, number << 16 | turn, 8 if turn % 20 else 1 << 20)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, range(4)))


def test_abandoned_receives_are_cancelled() -> None:
    with pair() as carriers:
        kept = WeakSet([data := word()])
        never = carriers[1].irecv(0, 1, data)
        carriers[1].give_up([never])
        with pytest.raises(Lost, match=r"[Cc]ancel"):
            never.settle()
        del never, data
        gc.collect()
        assert not kept
        exchange(carriers, 1, 1000)


def test_peer_of_another_job_is_refused() -> None:
    """As where a rank has died, and its port is another job's now. Nothing of one reaches the other."""
    with pair() as others:
        store, theirs = HashStore(), HashStore()
        with ThreadPoolExecutor(1) as pool:
            making = pool.submit(UcxCarrier, theirs, 0, 2, HERE, LATE_S)
            there = theirs.get("ucx 0")
            store.set("ucx 1", library.entry(bytes(16), library.read_entry(0, there)[1]))
            with pytest.raises(Lost, match="it does not respond"):
                UcxCarrier(store, 0, 2, HERE, 0.5)
            with closing(UcxCarrier(theirs, 1, 2, HERE, LATE_S)) as second, closing(making.result()) as first:
                exchange([first, second], 1, 1000)
        exchange(others, 1, 1000)


@pytest.mark.parametrize(
    "said",
    ["", "\xff" * 200, "ff" * 200, os.urandom(100).hex(), "xyz", "0" * 63, library.entry(bytes(16), b""),
     library.entry(bytes(16), bytes(70)).replace("00", "01", 1)],
    ids=["empty", "ff", "hex ff", "random", "text", "odd", "without address", "changed"],
)  # fmt: skip
def test_bad_entry_at_the_store_is_refused(said: str) -> None:
    """UCX would end the process."""
    store = HashStore()
    store.set("ucx 1", said)
    with pytest.raises(ArgumentError, match="invalid UCX address of rank 1"):
        UcxCarrier(store, 0, 2, HERE, LATE_S)


def test_closing_ignores_messages_of_failed_calls() -> None:
    """The receiver of a message never takes it. Messages that are not given up may leave for five seconds."""
    carriers = connected()
    for rank, carrier in enumerate(carriers):
        for nbytes in (8, 1 << 20):
            carrier.give_up([carrier.isend(1 - rank, 5, word(0, nbytes)), carrier.irecv(1 - rank, 6, word(0, nbytes))])
    exchange(carriers, 7, 8)
    for carrier in carriers:
        began = time.monotonic()
        carrier.close()
        assert time.monotonic() - began < 4.0
    with pytest.raises(Lost, match="this rank has closed its carrier"):
        carriers[0].isend(1, 8, word())


@pytest.mark.parametrize("sends", [False, True])
def test_dropped_carrier_ends_despite_messages(sends: bool) -> None:
    carriers = connected()
    carriers[0].irecv(1, 5, word())
    if sends:
        carriers[0].isend(1, 5, word())
    forgetting = threading.Thread(target=[carriers.pop(0)].clear)
    forgetting.start()
    forgetting.join(LATE_S)
    assert not forgetting.is_alive()
    carriers[0].close()


@pytest.mark.parametrize("silent", [False, True], ids=["never comes", "says nothing"])
def test_limit_covers_all_connections(silent: bool) -> None:
    """Rank 1 comes after 15 of 20 seconds, and then rank 2 is missing: rank 0 does not begin to count anew.

    Its clock goes on by a tenth of a second with each look.
    """

    class Other(UcxCarrier):
        def _connect(self, store: Store, _: Sequence[int], *limits: Any) -> None:
            super()._connect(store, peers, *limits)

    store: Any = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    peers: list[int] = []
    ends, now = [Other(store.clone(), 2, 3, HERE, LATE_S)] if silent else [], [0.0]
    peers = [0] if silent else []  # those of rank 1
    late = threading.Thread(target=lambda: ends.append(Other(store.clone(), 1, 3, HERE, LATE_S)))

    def look() -> None:
        if not now[0]:
            late.start()
            until(lambda: store.check(["ucx 1"]))
            now[0] = 15.0
        elif not silent or not late.is_alive():  # rank 1 has been heard
            now[0] += 0.1

    with patch.object(ucx, "time", SimpleNamespace(monotonic=lambda: now[0])), pytest.raises(Lost) as lost:
        UcxCarrier(store.clone(), 0, 3, HERE, 20.0, look)
    late.join()
    assert lost.value.peer == 2
    assert now[0] < 21.0


def test_a_forked_process_has_no_carrier() -> None:
    """Also where another thread is in the carrier meanwhile."""
    with pair() as carriers:
        waiting = threading.Thread(target=carriers[0].irecv(1, 6, got := word()).settle)
        waiting.start()
        if not (child := os.fork()):
            try:
                carriers[0].isend(1, 5, word())
            except InternalError:
                os._exit(7)
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        carriers[1].isend(0, 6, word(code)).settle()
        waiting.join(LATE_S)
    assert got[0] == 7
