"""Who is no rank, and what is no datagram of a sentinel, at the sockets of a sentinel."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from tests.support.fake_hosts import WORLD, FakeHosts
from tests.support.programs import run_python
from tests.support.waiting import until
from unisono.hosts.far import Far

ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
    sock.settimeout(20)
    sock.connect(chr(0) + sys.argv[1])
    try:
        sock.send(b'["register", 7, 4096, [0, 1]]')
        print(sock.recv(100))
    except ConnectionError:
        print(b"")
"""


def goes_on(fake: FakeHosts) -> None:
    """The sentinels still do what they are there for."""
    for far in fake.far:
        ticket = far.ask(WORLD)
        until(lambda far=far, ticket=ticket: far.answered(ticket))
        assert far.cut_off is None


def test_another_process_of_this_user_is_sent_away_without_a_word() -> None:
    with FakeHosts("2+1") as fake:
        fake.sleepers[1].kill()
        until(lambda: fake.far[0].left(1) is not None)  # there is something to be heard
        done = run_python("-c", ASK, fake.names[0], check=True)
        assert done.stdout == "b''\n"
        goes_on(fake)


@pytest.mark.parametrize(
    "said",
    [
        b"{",
        b"[" * 50_000,
        b'["register", 7]',
        b'["register", 9, 12345, [0, 1]]',
        b'["register", 9, 4096, [0, "x"]]',
        b'["register", 9, 1e400, [0]]',
        b'["ask", -1, 4]',
        b'["ask", true, 4]',
        b'["wake", 18446744073709551616]',
        b"x" * 140_000,
    ],
    ids=lambda said: said[:30].decode(),
)
def test_a_rank_that_talks_nonsense_is_not_heard_any_more(said: bytes) -> None:
    with FakeHosts("1+1") as fake:
        far = Far(fake.arenas[0], fake.hosts, 0, fake.names[0], 1.5)
        far._socket.send(said)
        until(lambda: "hung up" in str(far.cut_off))
        far.close()
        goes_on(fake)


def test_datagrams_of_strangers_change_nothing() -> None:
    rng = random.Random(3)
    with FakeHosts("1+1") as fake, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for length in (0, 1, 15, 16, 40, 1000, 60_001, 65_000):
            for _ in range(20):
                stranger.sendto(rng.randbytes(length), fake.addresses[0])
        goes_on(fake)


def test_a_sentinel_is_reached_at_the_data_address_only() -> None:
    with FakeHosts("1+1") as fake:
        for host, port in fake.addresses:
            assert host == "127.0.0.1"
            lines = [line.split()[1] for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
            assert [line for line in lines if line.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]
