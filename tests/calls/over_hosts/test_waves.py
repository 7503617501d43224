"""Long vectors over hosts: read and written where they are, and in several pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

import unisono
from unisono.base.config import Config
from unisono.base.link import Link
from unisono.schedule import Hosts
from unisono.schedule.choose.over_hosts import choose_spanning

SLOW = "20Mbit"
"""So slow that vectors go in four pieces."""

N = 300_007


@pytest.fixture(scope="module", params=["2x1", "3+1"])
def slow(request: pytest.FixtureRequest) -> Iterator[unisono.World]:
    shape: str = request.param
    config = replace(Config.from_env(), link=Link.parse(SLOW))
    with unisono.world(Hosts.parse(shape).ranks, hosts=shape, timeout_s=90, config=config) as world:
        yield world


def given(rank: int, n: int = N) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float64) % 1009 * (rank + 1)


def test_they_go_in_pieces() -> None:
    config = replace(Config.from_env(), link=Link.parse(SLOW))
    for name in ("all_reduce", "broadcast", "all_gather", "all_to_all"):
        assert choose_spanning(name, 8 * N, Hosts.parse("2x2"), config).pieces == 4
        assert choose_spanning(name, 8 * N, Hosts.parse("2x2"), Config.from_env()).pieces == 1


def test_all_reduce(slow: unisono.World) -> None:
    def work() -> None:
        me, size = unisono.get_rank(), unisono.get_world_size()
        for op, factor in (("sum", size * (size + 1) / 2), ("avg", (size + 1) / 2), ("max", size)):
            for _ in range(2):
                tensor = given(me)
                unisono.all_reduce(tensor, op)
                assert tensor.equal(given(0) * factor)

    slow.run(work)


def test_other_calls(slow: unisono.World) -> None:
    def work() -> None:
        me, size = unisono.get_rank(), unisono.get_world_size()
        for root in (0, size - 1):
            tensor = given(me)
            unisono.broadcast(tensor, root)
            assert tensor.equal(given(root))
            tensor = given(me)
            unisono.reduce(tensor, root)
            if me == root:
                assert tensor.equal(given(0) * size * (size + 1) / 2)
            parts = [torch.empty(N, dtype=torch.float64) for _ in range(size)] if me == root else None
            unisono.gather(given(me), parts, root)
            assert parts is None or all(part.equal(given(rank)) for rank, part in enumerate(parts))
            mine = torch.empty(N, dtype=torch.float64)
            unisono.scatter(mine, [given(rank) for rank in range(size)] if me == root else None, root)
            assert mine.equal(given(me))
        whole = torch.empty(size * N, dtype=torch.float64)
        unisono.all_gather_single(whole, given(me))
        assert whole.equal(torch.cat([given(rank) for rank in range(size)]))
        block = torch.empty(N, dtype=torch.float64)
        unisono.reduce_scatter_single(block, whole * (me + 1))
        assert block.equal(given(me) * size * (size + 1) / 2)
        unisono.all_to_all_single(whole, torch.cat([given(me) + rank for rank in range(size)]))
        assert whole.equal(torch.cat([given(rank) + me for rank in range(size)]))

    slow.run(work)


def test_who_gets_an_error_has_a_tensor_that_nobody_writes_any_more(slow: unisono.World) -> None:
    """What other ranks of a call have sent, and still send, goes to memory of our own."""

    def work() -> None:
        me, last = unisono.get_rank(), unisono.get_world_size() - 1
        group = unisono.new_group()
        tensor = torch.full((N,), float(me))
        if me != last:
            with pytest.raises(unisono.WaitTimeout):
                unisono.all_reduce(tensor, group=group, timeout_s=0.5)
            tensor.fill_(-1.0)
        unisono.barrier()
        if me == last:
            with suppress(unisono.PeerError):  # the others had sent all of it
                unisono.all_reduce(tensor, group=group, timeout_s=20)
        unisono.barrier()
        assert me == last or tensor.eq(-1.0).all()

    slow.run(work)
