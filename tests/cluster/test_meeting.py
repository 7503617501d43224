"""Processes that a launcher starts on several hosts meet, and know who shares memory."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support.cluster import Cluster
from tests.support.namespaces import PORT

Clusters = Callable[[str], Cluster]

SCRIPT = """
import os, sys
from unisono.ranks.rendezvous.which_rank import detect
from unisono.ranks.rendezvous.rendezvous import meet
from unisono.ranks.rendezvous.stores import open_store
launch = detect(os.environ)
store = open_store(launch, 100)
met = meet(launch.rank, launch.size, store, 100)
inode = os.fstat(met.arena.fd).st_ino
sys.stdout.write(f"{launch.rank} {met.hosts.members} {met.address} {inode} {met.secret.hex()} {'|'.join(met.names)}\\n")
sys.stdout.flush()
store.add("done", 1)
while store.add("done", 0) < launch.size:
    os.sched_yield()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def expect_meeting(cluster: Cluster, said: list[str]) -> None:
    """Every rank has the same map and secret, its host's address, and the memory that its host has alone."""
    lines = sorted(line for text in said for line in text.splitlines() if line[:1].isdecimal())
    hosts = cluster.hosts
    assert len(lines) == hosts.ranks, said
    inodes = {}
    for rank, line in enumerate(lines):
        number, rest = line.split(" ", 1)
        *rest, names = re.fullmatch(r"(\(\(.*\)\)) (\S+) (\S+) (\S+) (.*)", rest).groups()
        members, address, inode, secret = rest
        own = {name.partition(" at ")[2] for name in names.split("|")}  # they are of one name
        assert own == {cluster.address(host) for host in range(len(hosts.members))}
        assert (int(number), members) == (rank, f"{hosts.members}")
        assert address == cluster.address(hosts.host_of(rank))
        assert secret in lines[0]
        assert len(secret) == 64
        assert inodes.setdefault(hosts.host_of(rank), inode) == inode
    assert len(set(inodes.values())) == len(hosts.members)


@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_torchrun(cluster: Clusters, script, rendezvous):
    two = cluster("2x2")
    for node in range(2):
        if rendezvous == "static":
            how = ["--node-rank", node, "--master-addr", two.address(0), "--master-port", PORT]
        else:  # all these hosts have one name, and it leads to 127.0.0.1
            how = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{two.address(0)}:{PORT}", "--rdzv-id", "job",
                   "--rdzv-conf", f"is_host={int(node == 0)}", "--local-addr", two.address(node)]  # fmt: skip
        two.start(node, "-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 2, *how, script)
    expect_meeting(two, two.finish())


@pytest.mark.parametrize("shape", ["2x1", "3+1", "2x2:round_robin"])
def test_plain_environment(cluster: Clusters, script, shape):
    some = cluster(shape)
    for rank in range(some.hosts.ranks):
        env = {"RANK": rank, "WORLD_SIZE": some.hosts.ranks, "MASTER_ADDR": some.address(0), "MASTER_PORT": PORT}
        some.start(some.hosts.host_of(rank), script, env=env)
    expect_meeting(some, some.finish())
