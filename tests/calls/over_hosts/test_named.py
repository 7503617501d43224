"""Algorithms that calls over hosts name: each gives what it must, and a name means one table wherever it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import unisono
from tests.support.matrix import Case, ops
from tests.support.matrix_driver import check
from tests.support.worlds import OnHosts
from unisono.base.errors import AlgorithmError, ArgumentError, MismatchError
from unisono.schedule import Rows, Transfer, Y, send
from unisono.schedule.algorithms import CATALOGUE, algorithm

UNEVEN = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")


def numbers(rank: int, count: int, place: int = 0) -> torch.Tensor:
    """Small whole numbers, others on each rank and in each block: sums of them are exact."""
    return ((torch.arange(count) * 7 + 3 * rank + 5 * place) % 11 - 5).float()


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(hosts=["2x2", "3+1"])
def test_blocks_of_several_sizes_go_by_every_algorithm_or_are_refused() -> None:
    size, refused = unisono.get_world_size(), {}
    for some in CATALOGUE.values():
        if some.collective not in UNEVEN or not some.allows(size):
            continue
        op, name = ops(some.collective, "float32")[0], some.full_name
        try:
            check(Case(some.collective, "float32", op, 9, blocks="uneven", root=1, seed=1, exact=True), name)
        except (AlgorithmError, ArgumentError) as error:
            refused[name] = str(error)
    assert refused.keys() == {"all_to_all.bruck", "all_to_all.hierarchical"}
    assert "moves blocks to places of others" in refused["all_to_all.bruck"]


def test_a_name_means_one_table_short_or_full(on_hosts: OnHosts) -> None:
    """Ranks that name it in several ways make one call; a table of the user's own is another one."""

    def work() -> str:
        me, size = unisono.get_rank(), unisono.get_world_size()
        ways = ["circulant", "all_reduce.circulant"] * 2
        total = torch.stack([numbers(rank, 1000) for rank in range(size)]).sum(0)
        tensor = numbers(me, 1000)
        unisono.all_reduce(tensor, algorithm=ways[me])
        assert torch.equal(tensor, total)
        own = CATALOGUE["all_reduce.circulant"].schedule(size)
        with pytest.raises(MismatchError) as caught:
            unisono.all_reduce(tensor, algorithm=own if me else "circulant")
        unisono.all_reduce(tensor.copy_(numbers(me, 1000)), algorithm=own)
        assert torch.equal(tensor, total)
        return str(caught.value)

    said = on_hosts("2x2").run(work)
    assert "all_reduce.spanning circulant ×1 over 2x2" in said[0]
    assert "all_reduce.circulant over 2x2" in said[0]


def _by_the_neighbour(r: Rows, p: int) -> Iterator[Transfer]:
    """An all_to_all of 4 ranks: what is for the rank after the next waits at the next one, in the place of another."""
    yield send(r, (r + 1) % p, (r + 2) % p, dbuf=Y)
    yield send(r, (r + 1) % p, (r + 1) % p, to=(r - 1) % p, sbuf=Y, dbuf=Y)
    for step in (0, 1, 3):
        yield send(r, (r + step) % p, (r + step) % p, to=r, dbuf=Y)


@pytest.mark.ranks(hosts="2x2")
def test_a_table_that_cannot_take_blocks_of_several_sizes_is_not_dropped() -> None:
    me = unisono.get_rank()

    def exchange(pairs: Callable[[int, int], int]) -> None:
        taken = [torch.empty(pairs(rank, me)) for rank in range(4)]
        given = [numbers(me, pairs(me, rank), rank) for rank in range(4)]
        unisono.all_to_all(taken, given, algorithm=_by_the_neighbour)
        assert all(torch.equal(block, numbers(rank, pairs(rank, me), me)) for rank, block in enumerate(taken))

    exchange(lambda _a, _b: 5)
    with pytest.raises(AlgorithmError) as caught:
        exchange(lambda a, b: 2 * a + b)
    exchange(lambda _a, _b: 6)
    said = str(caught.value)
    assert "all_to_all._by_the_neighbour moves blocks to places of others" in said
    assert "leave algorithm= out" in said


@algorithm("broadcast", chunks=2)
def _by_another_chunk(r: Rows, p: int, root: int) -> Iterator[Transfer]:
    """A broadcast whose chunk 0 comes to the first rank but the root in the place of chunk 1."""
    first = (root + 1) % p
    yield send(root, first, 0, to=1)
    yield send(first, first, 1, to=0)
    yield send(root, first, 1)
    for rank in range(2, p):
        yield send(root, (root + rank) % p, 0, n=2)


@pytest.mark.ranks(4, hosts="2x2")
def test_a_table_that_changes_the_places_of_chunks_is_refused_as_on_one_host() -> None:
    with pytest.raises(AlgorithmError, match=r"chunk 0 goes to 1|moves chunks to places of others"):
        unisono.broadcast(torch.zeros(7), 0, algorithm=_by_another_chunk)
