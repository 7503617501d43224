"""The hosts themselves: calls run on them, links have rates, are counted, and can be cut.

mpirun over several hosts: rank 0 tells the others by MPI where to meet.
Groups of torch.distributed over hosts, real and pretended.
The trace of hosts that reach each other over a network only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch

import unisono
from tests.observe.test_trace import check
from tests.support.cluster import Cluster
from tests.support.mpi_launchers import LAUNCHERS, launcher, mpirun
from tests.support.namespaces import PORT, enter
from tests.support.on_ranks import in_new_world

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


def total(count: int, carrier: str) -> tuple[str, list[float]]:
    group = unisono.init()
    assert group.span.carrier.name == carrier
    mine = torch.arange(float(count)) + 1000 * group.rank
    unisono.all_reduce(mine)
    return group.hosts.text, mine.tolist()


@pytest.mark.parametrize("shape", ["2x1", "2x2:round_robin", "3+1"])
def test_a_call_over_hosts(cluster: Clusters, carrier: str, shape: str) -> None:
    some = cluster(shape)
    ranks, before = some.hosts.ranks, some.sent(1)
    expected = [ranks * n + 1000.0 * sum(range(ranks)) for n in range(5)]
    assert some.run(total, 5, carrier) == [(some.hosts.text, expected)] * ranks
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


SCRIPT = """
import sys
from mpi4py import MPI
import torch, unisono
group = unisono.init(timeout_s=100)
total = torch.full((3,), 10.0 ** group.rank)
unisono.all_reduce(total)
sys.stdout.write(f"rank {group.rank} on {group.hosts.text}: {total.tolist()}\\n")
sys.stdout.flush()
MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.parametrize("wheel", LAUNCHERS)
def test_mpirun(cluster: Clusters, wheel: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    found = launcher(wheel)
    if found is None:
        pytest.skip(f"the wheel {wheel} is not installed")
    some = cluster("2+1")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = mpirun(wheel, found, some, tmp_path, str(script))
    assert done.returncode == 0, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert said == [f"rank {rank} on 2+1: {[111.0] * 3}" for rank in range(3)]


TIMEOUT = timedelta(seconds=100)


def sums(rank: int, size: int, meeting: str) -> tuple[str, float]:
    """The hosts of a group of torch.distributed on these ranks, and what it sums."""
    import torch
    from torch import distributed

    from unisono.integrations.torch import register

    register()
    distributed.init_process_group("unisono", meeting, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        tensor = torch.full((3,), 10.0**rank)
        distributed.all_reduce(tensor)
        distributed.barrier()
        hosts = distributed.group.WORLD.group.hosts.text
        return hosts, tensor[1].item()
    finally:
        distributed.destroy_process_group()


@in_new_world(hosts="2+1", all_give=("2+1", 111.0))
def test_on_one_machine(tmp_path: Path) -> tuple[str, float]:
    return sums(unisono.get_rank(), unisono.get_world_size(), f"file://{tmp_path}/meeting")


@pytest.mark.parametrize("shape", ["2x1", "2x2:round_robin"])
def test_on_hosts(cluster: Clusters, shape: str) -> None:
    some = cluster(shape)
    hosts, names, meeting = some.hosts, some.names, f"tcp://{some.address(0)}:{PORT}"

    def rank() -> tuple[str, float]:
        mine = unisono.get_rank()
        enter(names[hosts.host_of(mine)])
        return sums(mine, hosts.ranks, meeting)

    expected = hosts.text, sum(10.0**rank for rank in range(hosts.ranks))
    assert unisono.run(rank, hosts.ranks, timeout_s=100) == [expected] * hosts.ranks


def work(count: int) -> None:
    tensor = torch.full((count,), unisono.get_rank() + 1.0)
    for _ in range(30):
        unisono.all_reduce(tensor, "max")


def test_one_file_with_one_clock(
    cluster: Callable[[str], Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    cluster("3x1").run(work, 5)
    whole = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    (made,) = (one for one in whole if one["otherData"]["clocks"])  # the ranks have met on one host before
    about, slices = made["otherData"], check(made["traceEvents"])
    assert [clock["host"] for clock in about["clocks"]] == [1, 2]
    for clock in about["clocks"]:
        assert abs(clock["ahead_ns"]) <= clock["error_ns"]  # they are one machine
    for rank in range(3):
        calls = [one["args"]["call"] for one in slices if one["pid"] == rank]
        assert calls.count("all_reduce(float32[5], max)") == 30
