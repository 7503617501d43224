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
from hypothesis import given, settings
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
    for number in range(5):
        left.send(["note", number], bytes([number]) * number)
    assert [right.receive(time.monotonic() + 5)[:2] for _ in range(5)] == [
        (["note", number], bytes([number]) * number) for number in range(5)
    ]
    assert right.poll() is None


def test_a_long_message_arrives_in_pieces(ends):
    left, right = ends
    payload = os.urandom(3_000_001)
    sender = threading.Thread(target=left.send, args=("long", payload))
    sender.start()
    assert right.receive(time.monotonic() + 30).payload == payload
    sender.join()


def test_descriptors_come_with_their_message(ends):
    left, right = ends
    files = [os.memfd_create(name) for name in ("first", "second", "third")]
    try:
        for number, fd in enumerate(files):
            os.write(fd, b"%d" % number)
        left.send("two", fds=files[:2])
        left.send("none")
        left.send("one", fds=files[2:])
        seen = []
        for count in (2, 0, 1):
            fds = right.receive(time.monotonic() + 5).fds
            assert len(fds) == count
            assert not any(os.get_inheritable(fd) for fd in fds)
            seen += [os.pread(fd, 9, 0) for fd in fds]
            for fd in fds:
                os.close(fd)
        assert seen == [b"0", b"1", b"2"]
    finally:
        for fd in files:
            os.close(fd)


def test_deadline_ends_receives_and_sends(ends):
    left, right = ends
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        right.receive(start + 0.05)
    with pytest.raises(TimeoutError):
        left.send("nobody reads", bytes(10_000_000), deadline=start + 0.1)
    assert time.monotonic() - start < 30


def test_the_end_is_seen_by_whoever_waits(ends):
    left, right = ends
    left.send("last")
    left.hang_up()
    assert right.receive(time.monotonic() + 5).value == "last"
    with pytest.raises(EOFError):
        right.receive(time.monotonic() + 5)


def test_half_an_end_still_lets_the_peer_speak(ends):
    left, right = ends
    left.end_sending()
    with pytest.raises(EOFError):
        right.poll()
    right.send("goodbye")
    assert left.receive(time.monotonic() + 5).value == "goodbye"


def test_closing_closes_descriptors_not_taken():
    left, raw = Channel.pair()
    right = Channel(raw)
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket() as extra:
        left.send("", fds=[extra.fileno()] * 3)
        left.send("", fds=[extra.fileno()] * 2)
        for fd in right.receive(time.monotonic() + 5).fds:
            os.close(fd)
    right.close()
    left.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2


HEADER = struct.Struct("<IQB")


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (3,)


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
@settings(max_examples=examples(300))
def test_any_bytes_are_messages_then_the_end(data: bytes) -> None:
    with said(data) as channel:
        assert until_the_end(channel) <= len(data)


def test_pickled_bytes_are_not_unpickled() -> None:
    with said(framed(pickle.dumps(Bomb()))) as channel, pytest.raises(EOFError, match="invalid message"):
        channel.poll()


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


@pytest.mark.parametrize("text", [b"[" * 60_000, b"9" * 60_000, b"\xff", b"NaN!"])
def test_values_that_are_no_values_are_the_end(text: bytes) -> None:
    with said(framed(text)) as channel:
        assert until_the_end(channel) <= 1  # versions of Python differ in which numbers are too long


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
    assert len(os.listdir("/proc/self/fd")) <= before


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
