"""Processes that are no ranks: they get nothing, hold nobody up, and what they write is refused with one error."""

import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from tests.conftest import examples
from tests.support.programs import Python
from unisono.base.config import Config
from unisono.base.errors import ArgumentError, OutOfMemory, PeerFailed, PeerGone
from unisono.base.fd_channel import PlainChannel, listen
from unisono.engine.memory.arena import Arena
from unisono.ranks.group.world_group import world_group
from unisono.ranks.rendezvous.handover import Handover, fetch
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.rendezvous import MeetingResult, meet
from unisono.ranks.rendezvous.rendezvous_messages import MeetingMessage, SentinelNotice, read_identity
from unisono.schedule import Hosts

SMALL = Config(segment_bytes=4096, heap_bytes=1 << 20)
DEADLINE_S = 60.0

STRANGER = """
import array, socket, sys
name, count, then = "\\0" + sys.argv[1], int(sys.argv[2]), sys.argv[3]
made = [socket.socket(socket.AF_UNIX) for _ in range(count)]
for sock in made:
    sock.connect(name)
if then == "listens":
    print([sock.recvmsg(1000, 1000)[:2] for sock in made], flush=True)
print("connected", flush=True)
while then == "floods":
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.settimeout(1)
            sock.connect(name)
            sock.send(b"\\xff" * 1000)
        except OSError:
            pass
sys.stdin.read()
"""

IMPOSTOR = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind("\\0" + sys.argv[1])
sock.listen()
print("listening", flush=True)
held = []
while True:
    held.append(sock.accept())
"""


@pytest.fixture
def name() -> str:
    return f"unisono-{secrets.token_hex(16)}"


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(2, SMALL)
    yield arena
    arena.close()


def hand_out(fd: int, listener: socket.socket, ranks: dict[int, Identity], deadline: float) -> list[int]:
    """Who is missing in the end; the others have heard a last word."""
    with closing(Handover(fd, listener, ranks)) as handover:
        missing = handover.serve(deadline, lambda _: [])
        handover.tell("that is all")
    return missing


def said(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


def test_only_ranks_get_the_descriptor(python: Python, name: str, arena: Arena) -> None:
    deadline = time.monotonic() + DEADLINE_S
    with listen(name) as listener, ThreadPoolExecutor(1) as pool:
        done = pool.submit(hand_out, arena.fd, listener, {1: Identity.mine()}, deadline)
        assert said(python("-I", "-S", "-c", STRANGER, name, 20, "listens")) == f"{[(b'', [])] * 20}"
        mine, word = fetch(name, 0, Identity.mine(), 1, deadline)
        assert word == "that is all"
        assert done.result() == []
    assert mine.size == 2
    mine.close()


@pytest.mark.parametrize("then", ["is silent", "floods"])
def test_nobody_holds_up_the_ranks(python: Python, name: str, arena: Arena, then: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    with listen(name) as listener, ThreadPoolExecutor(1) as pool:
        assert said(python("-I", "-S", "-c", STRANGER, name, 500, then)) == "connected"  # all of them before any rank
        done = pool.submit(hand_out, arena.fd, listener, {1: Identity.mine()}, deadline)
        fetch(name, 0, Identity.mine(), 1, deadline)[0].close()
        assert done.result() == []


def test_a_rank_that_is_silent_does_not_hold_up_the_others(name: str, arena: Arena) -> None:
    ranks = {1: Identity.mine(), 2: Identity.mine()}  # the process is the same: any of its threads may be a rank
    with listen(name) as listener, ThreadPoolExecutor(1) as pool, socket.socket(socket.AF_UNIX) as silent:
        silent.connect(f"\0{name}")
        done = pool.submit(hand_out, arena.fd, listener, ranks, time.monotonic() + 0.8)
        fetch(name, 0, Identity.mine(), 2, time.monotonic() + DEADLINE_S)[0].close()
        assert done.result() == [1]


def test_a_rank_without_room_is_named(name: str, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int) -> Arena:
        raise OutOfMemory("no room here")

    monkeypatch.setattr(Arena, "attach", refuse)
    deadline = time.monotonic() + DEADLINE_S
    with listen(name) as listener, ThreadPoolExecutor(1) as pool:
        done = pool.submit(hand_out, arena.fd, listener, {1: Identity.mine()}, deadline)
        with pytest.raises(OutOfMemory, match="no room here"):
            fetch(name, 0, Identity.mine(), 1, deadline)
        with pytest.raises(OutOfMemory, match=r"rank 1 cannot map .* no room here"):
            done.result()


def test_a_process_that_waits_in_place_of_rank_0_is_refused(python: Python, name: str) -> None:
    impostor = python("-I", "-S", "-c", IMPOSTOR, name)
    assert said(impostor) == "listening"
    with pytest.raises(ArgumentError, match=f"process {impostor.pid} .* waits where rank 0, process {os.getpid()} "):
        fetch(name, 0, Identity.mine(), 1, time.monotonic() + DEADLINE_S)


def test_an_earlier_process_of_the_same_number_is_another_one() -> None:
    mine, theirs = PlainChannel.pair()
    with theirs:
        own = Identity.mine()
        assert own.is_at(mine)
        for other in (own.replace(ticks=own.ticks + 1), own.replace(pid=1), own.replace(user=own.user + 1)):
            assert not other.is_at(mine)
    mine.close()


WRONG = [b"", b"{}", b"[]", b"7", b"\xff\xfe", b"[" * 10_000, b"x" * 20_000, b'{"pid": 1}', b"null"]


NAME = f"unisono-{'0' * 32}"
NO_SENTINELS = [
    *WRONG,
    b'["%s", "10.0.0.1"]' % NAME.encode(),
    *(json.dumps(said).encode() for said in (
        [NAME, "10.0.0.1", 0], [NAME, "10.0.0.1", 65536], [NAME, "10.0.0.1", -1], [NAME, "10.0.0.1", True],
        [NAME, "10.0.0.1", 99.0], [NAME, "10.0.0.1", "99"], [NAME, "", 99], [NAME, "node-a", 99], [NAME, 7, 99],
        ["other", "10.0.0.1", 99], ["", "10.0.0.1", 99], [NAME + "0", "10.0.0.1", 99], [NAME, "10.0.0.1", 99, 1],
        {NAME: 1, "10.0.0.1": 2, "99": 3}, "abc",
    )),
]  # fmt: skip


@pytest.mark.parametrize("written", NO_SENTINELS)
def test_what_a_rank_writes_must_make_sense(written: bytes) -> None:
    """Who it is, and where the sentinel of its host is."""
    read = {"identity of a process": lambda: read_identity(3, written)} if written in WRONG else {}
    for what, one in {**read, "notice of a sentinel": lambda: SentinelNotice.read(written, 3)}.items():
        with pytest.raises(ArgumentError, match=rf"rank 3 says .*, which is no {what}: .*MASTER_PORT") as caught:
            one()
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize("written", [NO_SENTINELS[0], NO_SENTINELS[-1]])
def test_what_strangers_write_of_a_sentinel_ends_the_start(written: bytes) -> None:
    store = HashStore()
    store.set("sentinel 1", written)
    with closing(Arena.create(2, SMALL)) as arena:
        met = MeetingResult(arena, Hosts.parse("2x1"), store, {0: Identity.mine()}, ("a", "b"), "127.0.0.1", bytes(32))
        with pytest.raises(ArgumentError, match=r"rank 1 says .*, which is no notice of a sentinel"):
            world_group(met, 0, config=SMALL)


@pytest.mark.parametrize("key", ["rank 1", "rank 0", "hosts"])
def test_a_meeting_refuses_what_strangers_write(key: str) -> None:
    store = HashStore()
    others = {"rank 0": json.dumps(vars(Identity.mine())), "hosts": MeetingMessage(reason="x").text()}
    store.set(key, '{"start": 35184372088832}')
    rank = 0 if key == "rank 1" else 1
    for other, value in others.items():
        if rank and other != key:
            store.set(other, value)
    with pytest.raises(ArgumentError, match="another program, or another version of unisono, writes to this store"):
        meet(rank, 2, store, 20)


words = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
identity_like = st.fixed_dictionaries(dict.fromkeys([f.name for f in fields(Identity)], words))
message_like = st.fixed_dictionaries(dict.fromkeys(MeetingMessage._fields, words))
notice_like = st.tuples(st.just(NAME) | words, st.ip_addresses().map(str) | words, st.integers() | words)
anything = st.binary(max_size=300) | (words | identity_like | message_like | notice_like).map(
    lambda it: json.dumps(it).encode()
)


READERS: list[tuple[Callable[[bytes], Any], Callable[[Any], str]]] = [
    (lambda written: read_identity(1, written), lambda identity: json.dumps(vars(identity))),
    (lambda written: MeetingMessage.read(written, 3), MeetingMessage.text),
    (lambda written: SentinelNotice.read(written, 1), SentinelNotice.text),
]


@pytest.mark.parametrize(("read", "text"), READERS, ids=["identity", "message", "notice"])
@given(anything)
@settings(max_examples=examples(400), deadline=None)
def test_any_bytes_are_understood_or_an_error(read: Any, text: Any, written: bytes) -> None:
    try:
        found = read(written)
    except ArgumentError:
        return
    assert {*getattr(found, "missing", ()), *getattr(found, "dead", ())[:1]} <= {0, 1, 2}
    assert read(text(found).encode()) == found


@pytest.mark.parametrize("size", [1, 2, 1024])
def test_what_rank_0_says_is_understood(size: int) -> None:
    for message in (
        MeetingMessage(name=f"unisono-{secrets.token_hex(16)}"),
        MeetingMessage(reason="they are apart: ü"),
        MeetingMessage(full="no room"),
        MeetingMessage(missing=tuple(range(size))),
        MeetingMessage(dead=(size - 1, 4711)),
    ):
        assert MeetingMessage.read(message.text().encode(), size) == message


def test_errors_of_a_meeting_are_those_that_are_documented() -> None:
    """The classes that `meet` names, and no other: a store that goes in the middle is a peer that cannot be reached."""

    class Gone(HashStore):  # type: ignore[misc]
        def check(self, _keys: list[str]) -> bool:
            raise RuntimeError("gone")

    with pytest.raises(PeerGone, match=r"rank 0 cannot be reached, as the store .* has closed the connection \(gone\)"):
        meet(1, 2, Gone(), 20)
    with pytest.raises(PeerFailed, match=r"rank 0 gave up init\(\): the store .* has closed the connection \(gone\)"):
        meet(0, 2, Gone(), 20)
