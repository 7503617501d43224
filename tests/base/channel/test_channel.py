"""Messages with descriptors arrive whole, in order, in bounded time."""

import os
import socket
import threading
import time

import pytest

from unisono.base.fd_channel import Channel, Descriptor

pytestmark = pytest.mark.quick


@pytest.fixture
def ends():
    left, raw = Channel.pair()
    right = Channel(raw)
    yield left, right
    left.close()
    right.close()


def test_messages_keep_their_order_and_parts(ends):
    left, right = ends
    for number in range(5):
        left.send(("note", number), bytes([number]) * number)
    assert [right.receive(time.monotonic() + 5)[:2] for _ in range(5)] == [
        (("note", number), bytes([number]) * number) for number in range(5)
    ]
    assert right.poll() is None


def test_a_long_message_arrives_in_pieces(ends):
    left, right = ends
    payload = os.urandom(3_000_001)
    sender = threading.Thread(target=left.send, args=("long", payload))
    sender.start()
    assert right.receive(time.monotonic() + 30).payload == payload
    sender.join()


def test_descriptors_arrive_with_their_message_and_are_not_inherited(ends):
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


def test_the_deadline_holds_for_receiving_and_for_sending(ends):
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


def test_descriptors_nobody_took_are_closed_with_the_channel():
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


def test_a_descriptor_closes_itself_once():
    fd = os.memfd_create("once")
    holder = Descriptor(fd)
    holder.close()
    holder.close()
    assert holder.fileno() == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
