"""Ranks on hosts in network namespaces: how they meet, what they sum, and packets that are lost."""

import random
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import unisono
from tests.support.cluster import Cluster
from tests.support.namespaces import PORT
from tests.support.waiting import until

Clusters = Callable[[str], Cluster]


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


MEETS = """
import os, sys
from unisono.ranks.rendezvous.which_rank import detect
from unisono.ranks.rendezvous.rendezvous import meet
from unisono.ranks.rendezvous.stores import MeetingPlace
launch = detect(os.environ)
store = MeetingPlace(launch, 100).enter()
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
    path.write_text(MEETS)
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


@pytest.mark.parametrize("how", ["cable", "link"])
def test_packets_that_are_lost_are_sent_again(cluster: Clusters, tmp_path: Path, how: str) -> None:
    """A cable has a loose contact; or the link itself goes down and up, so that nothing can be sent."""
    some, over, rng = cluster("2+1"), threading.Event(), random.Random(5)
    break_it, mend_it = (some.cut, some.mend) if how == "cable" else (some.link_down, some.link_up)

    def work() -> None:
        me = unisono.get_rank()
        beside = (me + 1) % 3
        (tmp_path / "ready").touch()
        for turn in range(20):
            for items in (2, 3_000, 300_000):
                tensor = torch.full((items,), 10.0**me)
                unisono.all_reduce(tensor)
                assert bool((tensor == 111.0).all())
                sent = unisono.isend(torch.full((items,), turn), beside)
                assert bool((unisono.recv(src=(me + 2) % 3) == turn).all())
                sent.wait()

    def shake() -> None:
        until((tmp_path / "ready").exists)
        while not over.wait(rng.uniform(0.05, 0.3)):
            break_it(1)
            over.wait(rng.uniform(0.01, 0.05))
            mend_it(1)

    shaking = threading.Thread(target=shake)
    shaking.start()
    try:
        some.run(work)
    finally:
        over.set()
        shaking.join()
