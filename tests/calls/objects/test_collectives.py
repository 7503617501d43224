"""Collectives of objects: what every rank gets, and what stays as it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import unisono
from unisono.calls.objects import all_gather_object, broadcast_object_list, gather_object, scatter_object_list

Worlds = Callable[[int], unisono.World]
SIZES = (1, 3)


@dataclasses.dataclass(frozen=True)
class Report:
    rank: int
    losses: tuple[float, ...]


def made(rank: int, extra: int = 0) -> dict[str, Any]:
    """An object whose type, size and values depend on the rank."""
    return {
        "report": Report(rank, tuple(0.5 * k for k in range(rank))),
        "weights": [torch.arange(100.0 * rank + extra).reshape(-1, 2).T, torch.tensor(rank, dtype=torch.bfloat16)],
        (rank, "key"): {rank, "text" * rank},
    }


def check(value: Any, rank: int, extra: int = 0) -> None:
    expected = made(rank, extra)
    tensors, others = value.pop("weights"), expected.pop("weights")
    assert value == expected
    assert list(value) == list(expected)
    for tensor, other in zip(tensors, others, strict=True):
        assert tensor.dtype == other.dtype
        assert torch.equal(tensor, other)


def gather_to_all(extra: int) -> None:
    group = unisono.init()
    places: list[Any] = [None] * group.size
    same = places
    all_gather_object(places, made(group.rank, extra))
    assert same is places
    for rank, value in enumerate(places):
        check(value, rank, extra)


def gather_to_each() -> None:
    group = unisono.init()
    for root in range(group.size):
        places = ["old"] * group.size if group.rank == root else None
        gather_object(made(group.rank), places, root)
        for rank, value in enumerate(places or []):
            check(value, rank)


def broadcast_from_each() -> None:
    group = unisono.init()
    for root in range(group.size):
        mine = [made(7), None, [group.rank], made(8, 2)]
        objects = list(mine) if group.rank == root else [group.rank] * 4
        broadcast_object_list(objects, root)
        if group.rank == root:
            assert all(one is other for one, other in zip(objects, mine, strict=True)), "the source's list is only read"
        else:
            assert objects[1:3] == [None, [root]]
            check(objects[0], 7)
            check(objects[3], 8, 2)
    empty: list[Any] = []
    broadcast_object_list(empty)
    assert not empty


def scatter_from_each() -> None:
    group = unisono.init()
    for root in range(group.size):
        objects = [made(rank, 2 * root) for rank in range(group.size)] if group.rank == root else None
        places = [None, "kept"]
        scatter_object_list(places, objects, root)
        check(places[0], group.rank, 2 * root)
        assert places[1] == "kept"
    ignored = [["all", k] for k in range(group.size)] if group.rank == 0 else ["not looked at"]
    scatter_object_list(places, ignored)
    assert places == [["all", group.rank], "kept"]


def anything_by_pickle() -> list[int]:
    rank, size = unisono.get_rank(), unisono.get_world_size()
    places: list[Any] = [None] * size
    all_gather_object(places, lambda x: x * 10 + rank, pickle=True)
    sums = [function(3) for function in places]
    gathered: list[Any] = [None] * size
    gather_object(lambda: rank + 1, gathered if rank == 0 else None, pickle=True)
    objects: list[Any] = [(lambda: 5) if rank == 0 else None]
    broadcast_object_list(objects, pickle=True)
    received: list[Any] = [None]
    scatter_object_list(received, [lambda k=k: k for k in range(size)], pickle=True)
    first = [function() for function in gathered] if rank == 0 else []
    return [*sums, *first, objects[0](), received[0]()]


@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("extra", [0, 1_000_000], ids=["small", "4 MB"])
def test_all_gather_object(worlds: Worlds, ranks: int, extra: int) -> None:
    worlds(ranks).run(gather_to_all, extra)


@pytest.mark.parametrize("ranks", SIZES)
def test_gather_object(worlds: Worlds, ranks: int) -> None:
    worlds(ranks).run(gather_to_each)


@pytest.mark.parametrize("ranks", SIZES)
def test_broadcast_object_list(worlds: Worlds, ranks: int) -> None:
    worlds(ranks).run(broadcast_from_each)


@pytest.mark.parametrize("ranks", SIZES)
def test_scatter_object_list(worlds: Worlds, ranks: int) -> None:
    worlds(ranks).run(scatter_from_each)


def test_anything_travels_by_pickle(worlds: Worlds) -> None:
    assert worlds(3).run(anything_by_pickle) == [[30, 31, 32, 1, 2, 3, 5, 0], [30, 31, 32, 5, 1], [30, 31, 32, 5, 2]]
