"""Groups of torch.distributed over hosts, real and pretended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import unisono
from tests.support.cluster import Cluster
from tests.support.namespaces import PORT, enter

Clusters = Callable[[str], Cluster]
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


def test_on_one_machine(tmp_path: Path) -> None:
    def rank() -> tuple[str, float]:
        return sums(unisono.get_rank(), unisono.get_world_size(), f"file://{tmp_path}/meeting")

    assert unisono.run(rank, hosts="2+1", timeout_s=100) == [("2+1", 111.0)] * 3


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
