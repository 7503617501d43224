"""Collectives and messages of objects: what ranks get, and errors that name the object on every rank it concerns."""

import time
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import pytest
import torch

import unisono
from tests.support.on_ranks import Worlds
from unisono import ArgumentError, DTypeError, MismatchError
from unisono.calls.objects import all_gather_object, broadcast_object_list, gather_object, scatter_object_list


def made(rank: int, extra: int = 0) -> dict[Any, Any]:
    """An object whose size and values depend on the rank."""
    return {
        "losses": tuple(0.5 * k for k in range(rank)),
        "text": "x" * (100 * rank + extra),
        (rank, "key"): {rank, "a"},
    }


@pytest.mark.ranks(1, 3)
def test_only_the_places_of_results_change() -> None:
    """Of a list to be scattered to, the first. The source's list is only read, and the lists of others not at all."""
    me, size = unisono.get_rank(), unisono.get_world_size()
    root, places, everybody = size - 1, [None, "kept"], [None] * size
    all_gather_object(everybody, made(me, 4_000_000))
    assert everybody == [made(rank, 4_000_000) for rank in range(size)]
    mine = [made(7), None, [me], made(8, 2)]
    objects = list(mine) if me == root else [me] * 4
    broadcast_object_list(objects, root)
    assert objects == [made(7), None, [root], made(8, 2)]
    assert me != root or all(one is other for one, other in zip(objects, mine, strict=True))
    broadcast_object_list([])
    scatter_object_list(places, [made(rank) for rank in range(size)] if me == root else ["not looked at"], root)
    assert places == [made(me), "kept"]


@pytest.mark.ranks(3)
def test_pickle_sends_anything() -> None:
    rank = unisono.get_rank()
    places: list[Any] = [None] * 3
    all_gather_object(places, lambda x: x * 10 + rank, pickle=True)
    assert [function(3) for function in places] == [30, 31, 32]
    gathered: list[Any] = [None] * 3
    gather_object(lambda: rank + 1, None if rank else gathered, pickle=True)
    assert rank or [function() for function in gathered] == [1, 2, 3]
    objects: list[Any] = [None if rank else lambda: 5]
    broadcast_object_list(objects, pickle=True)
    scatter_object_list(places, [lambda k=k: k for k in range(3)], pickle=True)
    assert (objects[0](), places[0]()) == (5, rank)


@pytest.mark.ranks(3)
def test_objects_that_do_not_fit_raise_there() -> None:
    """Pickled objects where they are not wanted, and a list of another length. The group goes on."""
    me = unisono.get_rank()
    places, objects = ["old"] * 3, [None, None] if me == 2 else list("abc")
    words = "all_gather_object: cannot decode the object from rank 0: the sender used pickle=True"
    with pytest.raises(ArgumentError, match=words) if me else nullcontext():
        all_gather_object(places, me, pickle=me == 0)
    assert places == (["old"] * 3 if me else [0, 1, 2])
    words = "got 2 places, expected 3, the number of objects from rank 0"
    with pytest.raises(ArgumentError, match=words) if me == 2 else nullcontext():
        broadcast_object_list(objects)
    assert objects == ([None, None] if me == 2 else list("abc"))
    found: list[Any] = [None] * 3
    all_gather_object(found, me)
    assert found == [0, 1, 2]


def test_run_blames_rank_of_the_object(worlds: Worlds) -> None:
    def fail_late() -> None:
        try:
            all_gather_object([None] * 2, object() if unisono.get_rank() else 1)
        finally:
            time.sleep(0.1 * unisono.get_rank())

    with pytest.raises(DTypeError, match=r"rank 1 failed(.|\n)*builtins\.object at the top") as raised:
        worlds(2).run(fail_late)
    assert raised.value.rank == 1  # type: ignore[attr-defined]
    assert not isinstance(raised.value, MismatchError | ArgumentError)


@pytest.mark.ranks(1, 3, hosts="2+1")
def test_objects_pass_beside_equal_tags() -> None:
    me, p = unisono.get_rank(), unisono.get_world_size()
    to, by = (me + 1) % p, (me - 1) % p
    unisono.send_object_list([{"rank": me, "weights": torch.full((300_000,), float(me))}, (1, "two", None)], to, tag=4)
    unisono.send(torch.tensor([me]), to, tag=4)
    unisono.send_object_list(["other tag", me], to)
    got: list[Any] = [None, None]
    assert unisono.recv_object_list(got, by) == by
    assert got == ["other tag", by]
    assert unisono.recv(None, by, tag=4).tolist() == [by]
    assert unisono.recv_object_list(got, tag=4) == by
    assert (got[0]["rank"], got[1]) == (by, (1, "two", None))
    assert torch.equal(got[0]["weights"], torch.full((300_000,), float(by)))


@pytest.mark.ranks(2, hosts="2x1")
def test_received_objects_fit_or_raise() -> None:
    """They are then lost: the next receive gets the next list."""
    other, got, pickled = 1 - unisono.get_rank(), [None], [Fraction(1, 3)]
    for sent, how, words in (
        (pickled, {"pickle": True}, "pickle"),
        ([1, 2], {}, r"got 1 places, expected 2, the number of objects from rank \d"),
    ):
        unisono.send_object_list(sent, other, **how)
        with pytest.raises(unisono.ArgumentError, match=words):
            unisono.recv_object_list(got, other)
        assert got == [None]
    unisono.send_object_list(pickled, other, pickle=True)
    unisono.recv_object_list(got, other, pickle=True)
    assert got == pickled
