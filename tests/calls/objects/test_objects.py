"""Collectives and messages of objects: what ranks get, and errors that name the object on every rank it concerns."""

from collections.abc import Callable
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import pytest
import torch

import unisono
from tests.support.worlds import Worlds
from unisono import ArgumentError, MismatchError
from unisono.base.errors import DTypeError
from unisono.calls.objects import all_gather_object, broadcast_object_list, gather_object, scatter_object_list

SIZES = (1, 3)


def made(rank: int, extra: int = 0) -> dict[Any, Any]:
    """An object whose size and values depend on the rank."""
    return {
        "losses": tuple(0.5 * k for k in range(rank)),
        "text": "x" * (100 * rank + extra),
        (rank, "key"): {rank, "a"},
    }


@pytest.mark.parametrize("extra", [0, 4_000_000], ids=["small", "4 MB"])
@pytest.mark.ranks(*SIZES)
def test_all_gather_object(extra: int) -> None:
    group = unisono.init()
    places: list[Any] = [None] * group.size
    all_gather_object(places, made(group.rank, extra))
    assert places == [made(rank, extra) for rank in range(group.size)]


@pytest.mark.ranks(*SIZES)
def test_broadcast_object_list() -> None:
    """The source's list is only read."""
    group = unisono.init()
    for root in range(group.size):
        mine = [made(7), None, [group.rank], made(8, 2)]
        objects = list(mine) if group.rank == root else [group.rank] * 4
        broadcast_object_list(objects, root)
        assert objects == [made(7), None, [root], made(8, 2)]
        assert group.rank != root or all(one is other for one, other in zip(objects, mine, strict=True))
    broadcast_object_list([])


@pytest.mark.ranks(*SIZES)
def test_scatter_object_list() -> None:
    """Only the first place is taken, and only the root's objects are looked at."""
    group, places = unisono.init(), [None, "kept"]
    for root in range(group.size):
        objects = [made(rank, 2 * root) for rank in range(group.size)] if group.rank == root else ["not looked at"]
        scatter_object_list(places, objects, root)
        assert places == [made(group.rank, 2 * root), "kept"]


def goes_on() -> None:
    """After an error the group still works."""
    places: list[Any] = [None] * unisono.get_world_size()
    all_gather_object(places, unisono.get_rank())
    assert places == list(range(len(places)))


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


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.ranks(2, 5)
def test_unknown_object_raises_everywhere(ranks: int, first: int) -> None:
    """An object of no known type on every second rank, in every call in which these send."""
    me, places, culprits = unisono.get_rank(), ["old"] * ranks, range(first, ranks, 2)
    thing = {"deep": [1, object()]} if me in culprits else me
    many = [*range(ranks - 1), thing]
    calls: dict[str, tuple[Callable[[], None], str]] = {
        "all_gather_object": (lambda: all_gather_object(places, thing), "obj"),
        "gather_object": (lambda: gather_object(thing, None if me else places), "obj"),
        "broadcast_object_list": (lambda: broadcast_object_list([thing], first), "object_list"),
        "scatter_object_list": (
            lambda: scatter_object_list(places, many, first), rf"scatter_object_input_list\[{ranks - 1}\]"
        ),
    }  # fmt: skip
    for name, (call, where) in calls.items():
        words, error = rf"{where}: builtins\.object at .*\['deep'\]\[1\]", DTypeError
        if me != first and not (me in culprits and "gather" in name):
            words, error = rf"rank {first}  {name}, refused there: .*{words}", MismatchError
        with pytest.raises(error, match=f"(?s){words}"):
            call()
        goes_on()
    assert places == ["old"] * ranks


@pytest.mark.ranks(3)
def test_pickle_raises_where_it_is_not_wanted() -> None:
    me = unisono.get_rank()
    places: list[Any] = ["old"] * 3
    words = "all_gather_object: cannot decode the object from rank 0: the sender used pickle=True"
    with pytest.raises(ArgumentError, match=words) if me else nullcontext():
        all_gather_object(places, me, pickle=me == 0)
    assert places == (["old"] * 3 if me else [0, 1, 2])
    goes_on()


@pytest.mark.ranks(3)
def test_list_of_another_length_raises_there() -> None:
    me = unisono.get_rank()
    objects: list[Any] = [None, None] if me == 2 else list("abc")
    words = "got 2 places, expected 3, the number of objects from rank 0"
    with pytest.raises(ArgumentError, match=words) if me == 2 else nullcontext():
        broadcast_object_list(objects)
    assert objects == ([None, None] if me == 2 else list("abc"))
    goes_on()


def test_run_blames_rank_of_the_object(worlds: Worlds) -> None:
    with pytest.raises(DTypeError, match=r"rank 1 failed(.|\n)*builtins\.object at the top") as raised:
        worlds(2).run(lambda: all_gather_object([None] * 2, object() if unisono.get_rank() else 1))
    assert raised.value.rank == 1
    assert not isinstance(raised.value, MismatchError | ArgumentError)


@pytest.mark.ranks(1, 3, hosts="2+1")
def test_objects_pass_beside_equal_tags() -> None:
    me, p = unisono.get_rank(), unisono.get_world_size()
    to, by = (me + 1) % p, (me - 1) % p
    mine = [{"rank": me, "weights": torch.full((300_000,), float(me))}, (1, "two", None)]
    unisono.send_object_list(mine, to, tag=4)
    unisono.send(torch.tensor([me]), to, tag=4)
    unisono.send_object_list(["other tag", me], to)
    got: list[Any] = [None, None]
    assert unisono.recv_object_list(got, by) == by
    assert got == ["other tag", by]
    tensor = torch.zeros(1, dtype=torch.int64)
    assert unisono.recv(tensor, by, tag=4) == by
    assert tensor.item() == by
    assert unisono.recv_object_list(got, tag=4) == by
    assert got[0]["rank"] == by
    assert torch.equal(got[0]["weights"], torch.full((300_000,), float(by)))
    assert got[1] == (1, "two", None)


@pytest.mark.ranks(2, hosts="2x1")
def test_wrong_object_lists_are_refused() -> None:
    me = unisono.get_rank()
    with pytest.raises(unisono.DTypeError, match="Fraction"):
        unisono.send_object_list([Fraction(1, 3)], 1 - me)
    with pytest.raises(unisono.DTypeError, match="object_list: got tuple, expected a list"):
        unisono.send_object_list((1, 2), 1 - me)
    unisono.send_object_list([Fraction(1, 3)], 1 - me, pickle=True)
    got: list[Any] = [None]
    with pytest.raises(unisono.ArgumentError, match="pickle"):
        unisono.recv_object_list(got, 1 - me)
    assert got == [None]
    unisono.send_object_list([Fraction(1, 3)], 1 - me, pickle=True)
    unisono.recv_object_list(got, 1 - me, pickle=True)
    assert got == [Fraction(1, 3)]
    unisono.send_object_list([1, 2], 1 - me)
    with pytest.raises(unisono.ArgumentError, match=r"got 1 places, expected 2, the number of objects from rank \d"):
        unisono.recv_object_list(got, 1 - me)
