"""Collectives of objects: what every rank gets, and errors that name the object on every rank that it concerns."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.worlds import Worlds
from unisono import ArgumentError, MismatchError
from unisono.base.errors import DTypeError
from unisono.calls import objects
from unisono.calls.objects import all_gather_object, broadcast_object_list, gather_object, scatter_object_list

SIZES = (1, 3)


def made(rank: int, extra: int = 0) -> dict[str, Any]:
    """An object whose type, size and values depend on the rank."""
    return {
        "losses": tuple(0.5 * k for k in range(rank)),
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


@pytest.mark.parametrize("extra", [0, 1_000_000], ids=["small", "4 MB"])
@pytest.mark.ranks(*SIZES)
def test_all_gather_object(extra: int) -> None:
    group = unisono.init()
    places: list[Any] = [None] * group.size
    same = places
    all_gather_object(places, made(group.rank, extra))
    assert same is places
    for rank, value in enumerate(places):
        check(value, rank, extra)


@pytest.mark.ranks(*SIZES)
def test_broadcast_object_list() -> None:
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


@pytest.mark.ranks(*SIZES)
def test_scatter_object_list() -> None:
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


def test_anything_travels_by_pickle(worlds: Worlds) -> None:
    assert worlds(3).run(anything_by_pickle) == [[30, 31, 32, 1, 2, 3, 5, 0], [30, 31, 32, 5, 1], [30, 31, 32, 5, 2]]


Said = tuple[str, str]


def attempt(call: Callable[[], None]) -> Said:
    """What the call raised, after which the group must still work."""
    said = ("", "")
    try:
        call()
    except unisono.UnisonoError as error:
        said = (type(error).__name__, str(error))
    group = unisono.init()
    places: list[Any] = [None] * group.size
    all_gather_object(places, group.rank)
    assert places == list(range(group.size))
    return said


def unknown_everywhere(culprits: set[int]) -> list[Said]:
    """An object of no known type on these ranks, in every call in which they send."""
    group = unisono.init()
    thing = {"deep": [1, object()]} if group.rank in culprits else group.rank
    root, places = min(culprits), ["old"] * group.size
    said = [
        attempt(lambda: all_gather_object(places, thing)),
        attempt(lambda: gather_object(thing, places if group.rank == 0 else None)),
        attempt(lambda: broadcast_object_list([thing], root)),
        attempt(lambda: scatter_object_list(places, [*range(group.size - 1), thing], root)),
    ]
    assert places == ["old"] * group.size
    return said


@pytest.mark.parametrize(("ranks", "culprits"), [(1, {0}), (2, {1}), (3, {0}), (5, {1, 3})])
def test_an_object_that_cannot_be_encoded_raises_everywhere(worlds: Worlds, ranks: int, culprits: set[int]) -> None:
    calls = ["all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"]
    wheres = ["obj: ", "obj: ", r"object_list: ", f"scatter_object_input_list[{ranks - 1}]: "]
    first = min(culprits)
    for rank, said in enumerate(worlds(ranks).run(unknown_everywhere, culprits)):
        for call, where, (kind, message) in zip(calls, wheres, said, strict=True):
            sends = rank == first or (rank in culprits and "gather" in call)
            assert kind == ("DTypeError" if sends else "MismatchError")
            assert where + "builtins.object at " in message
            assert "['deep'][1]" in message
            if not sends:
                assert f"rank {first}  {call}, refused there: " in message


def one(
    function: Callable[..., None], wrong: Callable[[int], tuple[Any, ...]], right: Callable[[], tuple[Any, ...]]
) -> Said:
    """Rank 1 calls with wrong arguments."""
    group = unisono.init()
    return attempt(lambda: function(*(wrong(group.size) if group.rank == 1 else right())))


def three() -> list[Any]:
    return [None, None, None]


WRONG: dict[str, tuple[Callable[..., None], Callable[[int], tuple[Any, ...]], Callable[[], tuple[Any, ...]], str]] = {
    "too few places": (
        all_gather_object,
        lambda p: ([None] * (p - 1), 1),
        lambda: (three(), 1),
        "got 2 items, expected 3",
    ),
    "too many places": (all_gather_object, lambda p: ([None] * 4, 1), lambda: (three(), 1), "got 4"),
    "no list": (all_gather_object, lambda p: ((None,) * p, 1), lambda: (three(), 1), "got tuple, expected a list"),
    "no list to gather in": (gather_object, lambda p: (1, None, 1), lambda: (1, None, 1), "got NoneType"),
    "a list elsewhere": (gather_object, lambda p: (1, [0] * p), lambda: (1, None, 2), "Pass None here"),
    "no list to broadcast": (
        broadcast_object_list,
        lambda p: (None,),
        lambda: ([1],),
        "object_list: got NoneType",
    ),
    "no place": (scatter_object_list, lambda p: ([],), lambda: (three(), three()), "got an empty list"),
    "nothing to scatter": (scatter_object_list, lambda p: ([0], None, 1), lambda: ([0], None, 1), "got NoneType"),
    "too few to scatter": (scatter_object_list, lambda p: ([0], [1, 2], 1), lambda: ([0], None, 1), "got 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_list_on_one_rank_raises_everywhere(worlds: Worlds, name: str) -> None:
    function, wrong, right, message = WRONG[name]
    if name == "a list elsewhere":
        right = lambda: (1, three() if unisono.get_rank() == 2 else None, 2)  # noqa: E731
        wrong = lambda p: (1, [0] * p, 2)  # noqa: E731
    said = worlds(3).run(one, function, wrong, right)
    assert [kind for kind, _ in said] == ["MismatchError", said[1][0], "MismatchError"]
    assert said[1][0] in {"ArgumentError", "DTypeError"}
    for _, text in said:
        assert message in text


def wrong_roots() -> list[Said]:
    return [
        attempt(lambda: gather_object(1, None, 3)),
        attempt(lambda: broadcast_object_list([1], -1)),
        attempt(lambda: scatter_object_list([1], None, True)),
    ]


@pytest.mark.ranks(2)
def test_rank_without_memory_for_objects() -> None:
    """Rank 0 learns how many bytes it needs in the first step. It refuses the second one, and the group goes on."""
    me = unisono.get_rank()
    made = [None, None]
    for call in (
        lambda: all_gather_object(made, me),
        lambda: gather_object(me, None if me else made),
        lambda: broadcast_object_list(made, 1),
        lambda: scatter_object_list(made, [5, 6], 1),
    ):
        if me:
            with pytest.raises(MismatchError, match="no memory for it"):
                call()
        else:
            full = patch.object(objects, "_empty", side_effect=MemoryError("no memory for it"))
            with full, pytest.raises(MemoryError):
                call()
    all_gather_object(made, me)
    assert made == [0, 1]


def test_a_root_that_is_no_rank_raises_before_anything_moves(worlds: Worlds) -> None:
    for said in worlds(3).run(wrong_roots):
        assert [kind for kind, _ in said] == ["ArgumentError", "ArgumentError", "DTypeError"]
        assert "dst: got 3, expected a rank of this group, 0 to 2" in said[0][1]


def only_rank_0_pickles() -> tuple[Said, list[Any]]:
    group = unisono.init()
    places: list[Any] = ["old"] * group.size
    return attempt(lambda: all_gather_object(places, group.rank, pickle=group.rank == 0)), places


def test_pickled_objects_are_an_error_only_where_they_are_not_wanted(worlds: Worlds) -> None:
    (first, got), *others = worlds(3).run(only_rank_0_pickles)
    assert first == ("", "")
    assert got == [0, 1, 2]
    for (kind, message), places in others:
        assert kind == "ArgumentError"
        assert "all_gather_object: cannot decode the object from rank 0: the sender used pickle=True" in message
        assert places == ["old"] * 3, "filled in part"


def lists_of_different_lengths() -> tuple[Said, list[Any]]:
    objects: list[Any] = list("abc") if unisono.get_rank() != 2 else [None, None]
    return attempt(lambda: broadcast_object_list(objects)), objects


def test_a_list_of_another_length_is_an_error_where_it_is(worlds: Worlds) -> None:
    first, second, third = worlds(3).run(lists_of_different_lengths)
    assert first == second == (("", ""), list("abc"))
    (kind, message), objects = third
    assert (kind, objects) == ("ArgumentError", [None, None])
    assert "got 2 places, expected 3, the number of objects from rank 0" in message


def different_sources() -> Said:
    rank = unisono.get_rank()
    return attempt(lambda: broadcast_object_list(["x" * 3], rank))


def test_ranks_that_disagree_about_the_source_all_raise(worlds: Worlds) -> None:
    for kind, message in worlds(2).run(different_sources):
        assert kind == MismatchError.__name__
        assert "src=1" in message


def not_all_alike() -> None:
    all_gather_object([None] * 2, object() if unisono.get_rank() == 1 else 1)


def test_a_run_blames_the_rank_whose_object_it_was(worlds: Worlds) -> None:
    with pytest.raises(DTypeError, match=r"rank 1 failed(.|\n)*builtins\.object at the top") as raised:
        worlds(2).run(not_all_alike)
    assert raised.value.rank == 1
    assert not isinstance(raised.value, MismatchError | ArgumentError)
