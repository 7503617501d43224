"""A cable is pulled while ranks call: both sides are told, and only one of them goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.support.cluster import Cluster
from tests.support.namespaces import PORT

Clusters = Callable[[str], Cluster]

PROGRAM = """
import json, sys, time
import torch, unisono

group = unisono.init()
assert group.span.carrier.name == sys.argv[1]
tensor = torch.ones(int(sys.argv[2]))
unisono.all_reduce(tensor)
print("ready", flush=True)
try:
    while True:
        unisono.all_reduce(tensor.fill_(1.0))
except unisono.PeerGone as error:
    said, at = error, time.monotonic()
try:
    smaller = group.shrink()
    total = torch.full((10,), 10.0 ** group.rank)
    unisono.all_reduce(total, group=smaller)
    after = total[3].item()
except unisono.LeftOut as error:
    after = str(error)
print(json.dumps([group.rank, sorted(said.failed), str(said), after, at]), flush=True)
group.close()
"""


def start(some: Cluster, *words: object) -> dict[int, subprocess.Popen[str]]:
    """Start the program on all ranks; return when all have made a call."""
    hosts, programs = some.hosts, {}
    for rank in range(hosts.ranks):
        env = {"RANK": rank, "WORLD_SIZE": hosts.ranks, "MASTER_ADDR": some.address(0), "MASTER_PORT": PORT}
        programs[rank] = some.start(hosts.host_of(rank), "-c", PROGRAM, *words, env=env)
    for rank, program in programs.items():
        assert program.stdout.readline() == "ready\n", (rank, program.communicate())
    return programs


@pytest.mark.parametrize(("shape", "items"), [("2x2", 1_000), ("2+1", 4_000_000)])
def test_both_sides_are_told_and_one_goes_on(cluster: Clusters, carrier: str, shape: str, items: int) -> None:
    """In short calls, or in the middle of long ones."""
    some = cluster(shape)
    hosts, programs = some.hosts, start(some, carrier, items)
    some.cut(1)
    for rank, program in programs.items():
        line = program.stdout.readline()
        assert line, (rank, program.communicate())
        me, failed, words, after, _ = json.loads(line)
        others = [other for other in range(hosts.ranks) if hosts.host_of(other) != hosts.host_of(rank)]
        assert (me, failed) == (rank, others), words
        assert "silent for 1.5 s" in words
        if hosts.host_of(rank) == 0:
            assert after == sum(10.0**other for other in hosts.members[0])
        else:
            assert "cut off" in words
            assert "ranks on other hosts may have gone on, or not" in after


@pytest.mark.parametrize("fault", ["cut", "kill"])
def test_one_of_three_hosts_goes_and_all_agree(cluster: Clusters, carrier: str, fault: str) -> None:
    """Where only the way between two hosts is cut, though it hears the third; or where its sentinel is killed."""
    some = cluster("3x1")
    programs = start(some, carrier, 1_000)
    if fault == "cut":
        some.cut_pair(0, 1)
        why = "the others go on without it"
    else:
        (sentinel,) = set(some.processes(1)) - {programs[1].pid}
        os.kill(sentinel, signal.SIGKILL)
        why = "this host is cut off, because its sentinel"
    for rank, program in programs.items():
        me, failed, words, after, _ = json.loads(program.stdout.readline())
        assert (me, failed) == (rank, [0, 2] if rank == 1 else [1]), words
        if rank == 1:
            assert why in words
            assert "ranks on other hosts may have gone on, or not" in after
        else:
            assert after == 101.0
