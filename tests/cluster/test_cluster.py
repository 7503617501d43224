"""The hosts themselves: calls run on them, links have rates, are counted, and can be cut."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

import unisono
from tests.support.cluster import Cluster

Clusters = Callable[[str], Cluster]

PING = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()"
SERVE = """
import socket, sys
with socket.create_server(("", int(sys.argv[1]))) as server:
    print("ready", flush=True)
    while True:
        server.accept()[0].close()
"""
SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    for _ in range(100):
        sock.sendto(bytes(1000), (sys.argv[1], 9))
"""


def total(count: int) -> tuple[str, list[float]]:
    group = unisono.init()
    mine = torch.arange(float(count)) + 1000 * group.rank
    unisono.all_reduce(mine)
    return group.hosts.text, mine.tolist()


@pytest.mark.parametrize("shape", ["2x1", "2x2:round_robin", "3+1"])
def test_a_call_over_hosts(cluster: Clusters, shape: str) -> None:
    some = cluster(shape)
    ranks, before = some.hosts.ranks, some.sent(1)
    expected = [ranks * n + 1000.0 * sum(range(ranks)) for n in range(5)]
    assert some.run(total, 5) == [(some.hosts.text, expected)] * ranks
    assert some.sent(1) > before


def test_what_leaves_a_host_is_counted_and_held_back(cluster: Clusters) -> None:
    two = cluster("2x1")
    before = two.sent(0)
    two.start(0, "-c", SEND, two.address(1))
    two.finish()
    assert 100_000 < two.sent(0) - before < 120_000
    two.rate("1gbit")
    two.rate("none")


def test_a_cable_can_be_pulled_and_plugged_in_again(cluster: Clusters) -> None:
    two = cluster("2x1")
    assert two.start(1, "-c", SERVE, 4000).stdout.readline() == "ready\n"

    def reaches() -> bool:
        return two.start(0, "-c", PING, two.address(1), 4000).wait(timeout=60) == 0

    assert reaches()
    two.cut(1)
    assert not reaches()
    two.mend(1)
    end = time.monotonic() + 60
    while not reaches():
        assert time.monotonic() < end
