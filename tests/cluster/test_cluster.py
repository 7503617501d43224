"""Ranks on hosts in network namespaces: how they meet, what they sum, and packets, links and hosts that are lost."""

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

import unisono
from tests.fuzz.deaths import check
from tests.fuzz.fault_scene import Call, Fault, Scene
from tests.support.cluster import PORT, Cluster
from tests.support.waiting import until

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


def test_short_cuts_cost_nothing(cluster: Clusters, tmp_path: Path) -> None:
    """Shorter by a second than hosts may be silent; between calls, and in the middle of them."""
    some, cuts = cluster("2+1"), (1.0, 2.0, 3.0, 4.0)

    def calls() -> None:
        me = unisono.get_rank()
        for items in (2, 300_000):
            tensor = torch.full((items,), 10.0**me)
            unisono.all_reduce(tensor)
            assert bool((tensor == 111.0).all())
            sent = unisono.isend(torch.full((items,), me), (me + 1) % 3)
            assert bool((unisono.recv(src=(me + 2) % 3) == (me + 2) % 3).all())
            sent.wait()

    def work() -> None:
        for cut_s in cuts:
            calls()
            (tmp_path / f"idle {cut_s} {unisono.get_rank()}").touch()
            until((tmp_path / f"go on {cut_s}").exists, 20.0)
            calls()
            (tmp_path / f"busy {cut_s}").touch()
            end, over = time.monotonic() + cut_s + 1.0, torch.zeros(())
            while not over:
                calls()
                over = torch.tensor(float(time.monotonic() > end))
                unisono.all_reduce(over)

    def cut_and_mend(cut_s: float) -> None:
        some.cut(1)
        time.sleep(cut_s)
        some.mend(1)

    def are_idle(cut_s: float) -> bool:
        return len(list(tmp_path.glob(f"idle {cut_s} *"))) == 3

    def cut_now_and_then() -> None:
        for cut_s in cuts:
            until(partial(are_idle, cut_s), 30.0)
            cut_and_mend(cut_s)
            (tmp_path / f"go on {cut_s}").touch()
            until((tmp_path / f"busy {cut_s}").exists, 30.0)
            time.sleep(0.1)
            cut_and_mend(cut_s)

    cutting = threading.Thread(target=cut_now_and_then)
    cutting.start()
    some.run(work)
    cutting.join()


LONG = 2_000_000  # elements: it takes half a second at 200 Mbit/s
UNDER_WAY = "within 0.2"
SCENES = {
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
def test_all_go_on_without_the_lost_host(cluster: Clusters, scene: Scene) -> None:
    some = cluster(scene.hosts)
    some.rate("200mbit")
    check(scene, some)
