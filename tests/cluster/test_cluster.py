"""Ranks on hosts in network namespaces: how they meet, what they sum, and packets, links and hosts that are lost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.deaths import check
from tests.fuzz.fault_scene import Call, scene
from tests.support.cluster import PORT, Cluster
from tests.support.programs import place

Clusters = Callable[[str], Cluster]

pytestmark = pytest.mark.long

SCRIPT = """
import os, torch, unisono
group = unisono.init(timeout_s=100)
tensor = torch.tensor([10**group.rank])
unisono.all_reduce(tensor)
os.write(1, f"{group.hosts.text} {tensor.item()}\\n".encode())
"""


def expect_sums(cluster: Cluster) -> None:
    """Every rank has the map of the hosts, and the sum of all ranks."""
    lines = [line for text in cluster.finish() for line in text.splitlines()]
    assert lines == [f"{cluster.hosts.text} {'1' * cluster.hosts.ranks}"] * cluster.hosts.ranks


@pytest.mark.parametrize("container", [False, True], ids=["hosts", "containers"])
@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_torchrun(cluster: Clusters, tmp_path: Path, rendezvous: str, container: bool) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    two = cluster("2x2")
    for node in range(2):
        if rendezvous == "static":
            how = ["--node-rank", node, "--master-addr", two.address(0), "--master-port", PORT]
        else:  # all these hosts have one name, and it leads to 127.0.0.1
            how = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{two.address(0)}:{PORT}", "--rdzv-id", "job",
                   "--rdzv-conf", f"is_host={int(node == 0)}", "--local-addr", two.address(node)]  # fmt: skip
        words = ("-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 2, *how, tmp_path / "script.py")
        two.start(node, *words, container=container)
    expect_sums(two)


@pytest.mark.parametrize(("shape", "version"), [("2x1", 4), ("3+1", 4), ("2x2:round_robin", 4), ("2x2", 6)])
def test_plain_environment(cluster: Clusters, shape: str, version: int) -> None:
    some = cluster(shape)
    for rank in range(some.hosts.ranks):
        env = place(rank, some.hosts.ranks, PORT) | {"MASTER_ADDR": some.address(0, version)}
        some.start(some.hosts.host_of(rank), "-c", SCRIPT, env=env)
    expect_sums(some)


LONG = 2_000_000  # elements: it takes half a second at 200 Mbit/s
UNDER_WAY = "within 0.2"
MANY = tuple(Call(name, items) for items in (2, 3_000, 300_000) for name in ("all_reduce", "ring")) * 8
SCENES = {
    **{how: scene("2+1", MANY, f"2 {how} 0") for how in ("loose cable", "loose link")},
    "a brief cut between calls": scene("2+1", MANY[:6], "2 brief cut 2"),
    "a brief cut in a long call": scene("2+1", MANY[:6], "2 brief cut 4 within 0.001"),
    "a link, in messages": scene("3x1", f"ring, ring {LONG}", f"0 cut link 1 {UNDER_WAY}"),
    "a link, at the gate": scene("2x2", "ring, all_reduce 1000", "2 cut link 1"),
    "a link, in a long call": scene("2+1", f"barrier, all_reduce {LONG}", f"2 cut link 1 {UNDER_WAY}"),
    "what joins two": scene("3x1", f"barrier, all_reduce {LONG}", f"1 cut pair 1 {UNDER_WAY}"),
    "a host stops": scene("3x1", f"ring, ring {LONG}", f"0 stop host 1 {UNDER_WAY}"),
}
"""Of two hosts the first one goes on. Of two that do not reach each other the second is lost."""


@pytest.mark.parametrize("name", SCENES)
def test_scenes_of_links(cluster: Clusters, name: str) -> None:
    some = cluster(SCENES[name].hosts)
    some.rate("200mbit")
    check(SCENES[name], some)
