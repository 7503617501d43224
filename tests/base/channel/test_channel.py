"""Messages with file descriptors between two processes."""

import json
import os
import pickle
import resource
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from unisono.base.fd_channel import ANY_LENGTH, Channel

pytestmark = pytest.mark.quick


@pytest.fixture
def ends():
    left, raw = Channel.pair(ANY_LENGTH)
    right = Channel(raw, ANY_LENGTH)
    yield left, right
    left.close()
    right.close()


def test_messages_keep_their_order_and_parts(ends):
    left, right = ends
    parts = [b"", os.urandom(3_000_001), b"end"]
    sender = threading.Thread(target=lambda: [left.send(["note", len(part)], part) for part in parts])
    sender.start()
    assert [right.receive(time.monotonic() + 30) for _ in parts] == [(["note", len(part)], part, []) for part in parts]
    assert right.poll() is None
    sender.join()


def test_descriptors_come_with_their_message(ends):
    left, right = ends
    for names in (["first", "second"], [], ["third"]):
        fds = [os.memfd_create(name) for name in names]
        left.send(names, fds=fds)
        for fd in fds:
            os.close(fd)
    for _ in range(3):
        names, _, fds = right.receive(time.monotonic() + 5)
        assert [os.readlink(f"/proc/self/fd/{fd}").split()[0] for fd in fds] == [f"/memfd:{name}" for name in names]
        assert not any(map(os.get_inheritable, fds))
        for fd in fds:
            os.close(fd)


def test_deadline_ends_receives_and_sends(ends):
    left, right = ends
    with pytest.raises(TimeoutError):
        right.receive(time.monotonic() + 0.05)
    with pytest.raises(TimeoutError):
        left.send("nobody reads", bytes(10_000_000), deadline=time.monotonic() + 0.1)


@pytest.mark.parametrize("end", [Channel.hang_up, Channel.end_sending])
def test_peer_sees_the_end_after_the_messages(ends, end):
    left, right = ends
    left.send("last")
    end(left)
    assert right.receive(time.monotonic() + 5).value == "last"
    with pytest.raises(EOFError):
        right.receive(time.monotonic() + 5)
    if end == Channel.end_sending:
        right.send("goodbye")
        assert left.receive(time.monotonic() + 5).value == "goodbye"


HEADER = struct.Struct("<IQB")


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return os.abort, ()


def framed(value: bytes, payload: bytes = b"", fds: int = 0) -> bytes:
    return HEADER.pack(len(value), len(payload), fds) + value + payload


def until_the_end(channel: Channel) -> int:
    """How many messages come before the end."""
    for count in range(1 << 20):
        try:
            assert channel.poll() is not None
        except EOFError:
            return count
    raise AssertionError("it has no end")


@contextmanager
def said(data: bytes) -> Iterator[Channel]:
    """A channel whose other end has sent these bytes, and ended."""
    channel, raw = Channel.pair()
    with raw:
        raw.sendall(data)
    yield channel
    channel.close()


pieces = st.binary(max_size=40) | st.builds(
    framed,
    st.binary(max_size=20) | st.integers().map(lambda it: json.dumps([it]).encode()),
    st.binary(max_size=20),
    st.integers(0, 3) | st.just(0),
)


@given(st.lists(pieces, max_size=6).map(b"".join))
@example(framed(b"[" * 60_000))
@example(framed(b"9" * 60_000))
@example(framed(b"\xff"))
@example(framed(pickle.dumps(Bomb())))
@settings(max_examples=examples(300))
def test_any_bytes_are_messages_then_the_end(data: bytes) -> None:
    with said(data) as channel:
        assert until_the_end(channel) <= len(data) // HEADER.size


@pytest.mark.parametrize("sizes", [(1 << 20, 0), (0, 1 << 20), (0, (1 << 64) - 1), ((1 << 32) - 1, (1 << 64) - 1)])
def test_message_claiming_great_length_is_refused(sizes: tuple[int, int]) -> None:
    with said(HEADER.pack(*sizes, 0)) as channel:
        tracemalloc.start()
        try:
            with pytest.raises(EOFError, match="invalid message"):
                channel.poll()
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(("claimed", "sent"), [(2, 1), (1, 0), (0, 16)])
def test_unexpected_descriptors_are_closed(claimed: int, sent: int) -> None:
    channel, raw = Channel.pair()
    before = len(os.listdir("/proc/self/fd"))
    with raw:
        for _ in range(40):
            socket.send_fds(raw, [framed(b"1", fds=claimed)], [raw.fileno()] * sent)
            with suppress(EOFError):
                channel.poll()
            assert len(os.listdir("/proc/self/fd")) <= before + 32
    assert until_the_end(channel) == 0
    channel.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2


def test_full_descriptor_table_is_an_error() -> None:
    channel, raw = Channel.pair()
    with raw:
        socket.send_fds(raw, [framed(b"1", fds=1)], [raw.fileno()])
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(OSError, match=r"[Tt]oo many open files"):
                channel.poll()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    channel.close()
