"""Processes that are no ranks: they get nothing, hold nobody up, and what they write is refused with one error."""

import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from torch.distributed import HashStore

from tests.ranks.rendezvous.conftest import begun, meet, planned
from tests.support.programs import Python
from unisono.base.config import Config
from unisono.base.errors import ArgumentError
from unisono.base.fd_channel import Channel, listen
from unisono.engine.memory.arena import Arena
from unisono.ranks.group.world_group import world_group
from unisono.ranks.rendezvous.entries import HostMap, MeetingEnd, SentinelNotice, read, write
from unisono.ranks.rendezvous.handover import fetch, hand_out
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.meeting import MeetingResult
from unisono.schedule import Hosts

SMALL = Config(segment_bytes=4096, heap_bytes=1 << 20)
DEADLINE_S = 60.0

Stranger = Callable[[int, str], subprocess.Popen[str]]
STRANGER = """
import socket, sys
name, count, then = "\\0" + sys.argv[1], int(sys.argv[2]), sys.argv[3]
made = [socket.socket(socket.AF_UNIX) for _ in range(count)]
if then == "poses as rank 0":
    made[0].bind(name)
    made[0].listen()
else:
    for sock in made:
        sock.connect(name)
if then == "listens":
    print([sock.recvmsg(1000, 1000)[:2] for sock in made], flush=True)
print("there", flush=True)
while then == "floods":
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.settimeout(1)
            sock.connect(name)
            sock.send(b"\\xff" * 1000)
        except OSError:
            pass
made += [made[0].accept() for _ in range(100 if then == "poses as rank 0" else 0)]
sys.stdin.read()
"""


@pytest.fixture
def name() -> str:
    return f"unisono-{secrets.token_hex(16)}"


def fetched(name: str, rank: int) -> Arena:
    """The memory that this process, as rank 0, hands out at this name."""
    return fetch(Identity.mine()._replace(listens_at=name), 0, rank, time.monotonic() + DEADLINE_S)


@pytest.fixture
def stranger(python: Python, name: str) -> Stranger:
    """stranger(20, "listens"): another process that has made so many connections to this name."""
    return lambda count, then: python("-I", "-S", "-c", STRANGER, name, count, then)


def said(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


@contextmanager
def handing_out(name: str, ranks: int = 1) -> Iterator[Callable[[], None]]:
    """Hand memory out to so many ranks of this process: any of its threads may be one. All must have got it.

    Yields what begins it.
    """
    others, deadline, done = range(1, ranks + 1), time.monotonic() + DEADLINE_S, list[Future[list[int]]]()
    with closing(Arena.create(2, SMALL)) as arena, listen(name) as listener, ThreadPoolExecutor(1) as pool:
        how = arena.fd, listener, dict.fromkeys(others, Identity.mine()), deadline, lambda: None
        yield lambda: done.append(pool.submit(hand_out, *how))
        assert done.pop().result() == []


def test_only_ranks_get_the_descriptor(stranger: Stranger, name: str) -> None:
    with handing_out(name) as begin:
        begin()
        assert said(stranger(20, "listens")) == f"{[(b'', [])] * 20}"
        with closing(fetched(name, 1)) as mine:
            assert mine.size == 2


@pytest.mark.parametrize("then", ["is silent", "floods"])
def test_nobody_holds_up_the_ranks(stranger: Stranger, name: str, then: str) -> None:
    with handing_out(name) as begin:
        assert said(stranger(500, then)) == "there"  # all of them before any rank
        begin()
        fetched(name, 1).close()


def test_silent_rank_does_not_hold_up_the_others(name: str) -> None:
    with handing_out(name, 2) as begin, socket.socket(socket.AF_UNIX) as silent:
        silent.connect(f"\0{name}")
        begin()
        for rank in (2, 1):
            fetched(name, rank).close()


def test_impostor_of_rank_0_is_refused(stranger: Stranger, name: str) -> None:
    impostor = stranger(1, "poses as rank 0")
    assert said(impostor) == "there"
    with pytest.raises(ArgumentError, match=f"process {impostor.pid} .* in place of rank 0, process {os.getpid()} "):
        fetched(name, 1)


def test_ended_rank_0_is_not_called_a_stranger(name: str) -> None:
    """Its process listened until now: a connection to it may still be made, when its start can be read no more."""
    ended = Identity.mine()._replace(listens_at=name, ticks=1)
    with listen(name), pytest.raises(EOFError, match="rank 0 has ended"):
        fetch(ended, 0, 1, time.monotonic() + DEADLINE_S)


def test_earlier_process_of_a_pid_is_another() -> None:
    mine, theirs = Channel.pair()
    with theirs:
        own = Identity.mine()
        assert own.is_at(mine)
        for other in (own._replace(ticks=own.ticks + 1), own._replace(pid=1), own._replace(user=own.user + 1)):
            assert not other.is_at(mine)
    mine.close()


WRONG = [b"", b"{}", b"[]", b"7", b"\xff\xfe", b"[" * 10_000, b"x" * 70_000, b'{"pid": 1}', b"null"]
SOCKET = f"unisono-{'0' * 32}"
SENTINEL = SentinelNotice(SOCKET, "10.0.0.1", 99)
MAP = HostMap((((0, 2), "a", 2), ((1,), "b", 1)), "0" * 64, "10.0.0.1")
MINE = Identity("a", "b", "n", 1, 2, 3, "", {"unisono": "1"}, "", SOCKET)
CHANGES: list[tuple[Any, str, list[Any]]] = [
    (SENTINEL, "port", [0, 65536, -1, True, 99.0, "99", None]),
    (SENTINEL, "reached_at", ["", "node-a", 7]),
    (SENTINEL, "socket", ["other", "", SOCKET + "0", 7]),
    (MINE, "pid", [-1, 1 << 63, "1", 1.0, True]),
    (MINE, "address", ["10.0.0.1; rm", "node-a", 7]),
    (MINE, "common", ["", [], {"a": 1}, {"a": "b" * 101}, dict.fromkeys(map(str, range(50)), "")]),
    (MINE, "host", ["a" * 501, 7]),
    (MINE, "listens_at", ["other", SOCKET + "\n", 7]),
    (MINE, "size", [0, -1, "3", True]),
    (MINE, "job", ["a" * 501, 7]),
    (MAP, "hosts", [(), (((0, 1), "a", 2),), (((0, 1, 2), "a", 0),), (((0, 1, 2), "a", 4),), (((0, 1, 3), "a", 3),),
                    (((0, 1, 2), "a" * 33, 3),), (((0, 0, 1, 2), "a", 3),), (((0, 1, 2), "a"),), "abc", 7]),
    (MAP, "secret", ["0" * 63, "x" * 64, 7]),
    (MeetingEnd(), "missing", [(3,), (-1,), (True,), ("0",), 7]),
    (MeetingEnd(), "gone", [(0,), (3, 1, 5), (0, "1", 5), (0, 1, 7), (0, 1, 5, 0), 7]),
    (MeetingEnd(), "reason", ["a" * 4001, None]),
]  # fmt: skip


def expect_refusal(kind: type, written: bytes) -> None:
    words = rf"invalid {kind.__name__} of rank 3: .*MASTER_PORT"
    with pytest.raises(ArgumentError, match=words) as caught:
        read(kind, written, 3, 3)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(("entry", "field", "values"), CHANGES, ids=lambda it: it if isinstance(it, str) else "")
def test_entries_are_checked(entry: Any, field: str, values: list[Any]) -> None:
    """One wrong field, one field more, one less, and bytes that are not an entry at all."""
    assert read(type(entry), write(entry).encode(), 3, 3) == entry
    for value in values:
        expect_refusal(type(entry), write(entry._replace(**{field: value})).encode())
    fields = entry._asdict()
    for wrong in ({**fields, "other": 1}, {name: fields[name] for name in fields if name != field}):
        expect_refusal(type(entry), json.dumps(wrong).encode())
    for written in WRONG:
        expect_refusal(type(entry), written)


def test_invalid_sentinel_entry_ends_the_start() -> None:
    store = HashStore()
    store.set("sentinel 1", "{}")
    with closing(Arena.create(2, SMALL)) as arena:
        met = MeetingResult(arena, Hosts.parse("2x1"), store, ("a", "b"), "127.0.0.1", bytes(32))
        with pytest.raises(ArgumentError, match=r"invalid SentinelNotice of rank 1"):
            world_group(met, 0, config=SMALL)


@pytest.mark.parametrize("key", ["rank 1", "meeting", "hosts", "end"])
@pytest.mark.usefixtures("threads_are_ranks")
def test_strangers_entry_ends_the_meeting(key: str) -> None:
    part: Any = (store := HashStore())
    if key != "meeting":
        part = planned(store) if key == "rank 1" else begun(store, Identity.mine()._replace(size=2))
    part.set(key, '{"start": 35184372088832}')
    with pytest.raises(ArgumentError, match="Another program, or another version of unisono, writes to this store"):
        meet(0 if key == "rank 1" else 1, 2, store, 20)


def test_largest_entries_are_understood() -> None:
    hosts = HostMap(tuple(((rank,), "n" * 32, 1024) for rank in range(1024)), "0" * 64, "10.0.0.1")
    for entry in (hosts, MeetingEnd("they differ: ü"), MeetingEnd("", "full"), MeetingEnd(missing=(*range(1024),))):
        assert read(type(entry), write(entry).encode(), 0, 1024) == entry
