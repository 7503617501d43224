"""Ranks on hosts in network namespaces: how they meet, what they sum, and packets, links and hosts that are lost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.deaths import check
from tests.fuzz.fault_scene import Call, Fault, Scene
from tests.support.cluster import PORT, Cluster

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


@pytest.mark.parametrize(
    ("shape", "address"),
    [
        ("2x1", Cluster.address(0)),
        ("3+1", Cluster.address(0)),
        ("2x2:round_robin", Cluster.address(0)),
        ("2x2", Cluster.address_v6(0)),
    ],
)
def test_plain_environment(cluster: Clusters, shape: str, address: str) -> None:
    some = cluster(shape)
    for rank in range(some.hosts.ranks):
        env = {"RANK": rank, "WORLD_SIZE": some.hosts.ranks, "MASTER_ADDR": address, "MASTER_PORT": PORT}
        some.start(some.hosts.host_of(rank), "-c", SCRIPT, env=env)
    expect_sums(some)


LONG = 2_000_000  # elements: it takes half a second at 200 Mbit/s
UNDER_WAY = "within 0.2"
MANY = tuple(Call(name, items) for items in (2, 3_000, 300_000) for name in ("all_reduce", "ring")) * 8
SCENES = {
    **{how: Scene("2+1", MANY, (Fault(2, how),)) for how in ("loose cable", "loose link")},
    "a brief cut between calls": Scene("2+1", MANY[:6], (Fault(2, "brief cut", 2),)),
    "a brief cut in a long call": Scene("2+1", MANY[:6], (Fault(2, "brief cut", 4, "within 0.001"),)),
    "a link, in messages": Scene("3x1", (Call("ring"), Call("ring", LONG)), (Fault(0, "cut link", 1, UNDER_WAY),)),
    "a link, at the gate": Scene("2x2", (Call("ring"), Call("all_reduce", 1000)), (Fault(2, "cut link", 1),)),
    "a link, in a long call": Scene(
        "2+1", (Call("barrier"), Call("all_reduce", LONG)), (Fault(2, "cut link", 1, UNDER_WAY),)
    ),
    "what joins two": Scene("3x1", (Call("barrier"), Call("all_reduce", LONG)), (Fault(1, "cut pair", 1, UNDER_WAY),)),
    "a host stops": Scene("3x1", (Call("ring"), Call("ring", LONG)), (Fault(0, "stop host", 1, UNDER_WAY),)),
}
"""Of two hosts the first one goes on. Of two that do not reach each other the second is lost."""


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_scenes_of_links(cluster: Clusters, scene: Scene) -> None:
    some = cluster(scene.hosts)
    some.rate("200mbit")
    check(scene, some)
