"""Ranks that make different calls: the same error on every rank, nothing changed, and the group goes on."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import unisono
from tests.support.on_ranks import Worlds, in_new_world
from tests.support.waiting import until
from unisono import MismatchError
from unisono.base.records import CallRecord
from unisono.engine.compile.program import StateWord
from unisono.schedule import send

COUNT = 5000


def tensor(count: int = COUNT) -> torch.Tensor:
    return (torch.arange(count) % 100 + unisono.get_rank()).float()


def wide() -> torch.Tensor:
    return torch.zeros(COUNT * unisono.init().size)


def walk(step: int) -> Any:
    def walk(r, p):
        for k in range(1, p):
            yield send(r, (r + step * k) % p, r)

    return walk


upwards, downwards, usual = walk(1), walk(-1), unisono.all_reduce


def reduce_scatter(t: torch.Tensor, op: str) -> None:
    unisono.reduce_scatter(tensor(), [t] * unisono.get_world_size(), op)


Call = Callable[[torch.Tensor], Any]

# What most ranks call, what the odd one calls, and what the table shows of the odd one.
DIFFERENT: dict[str, tuple[Call, Call, str]] = {
    "op": (usual, lambda t: unisono.all_reduce(t, "max"), "max)"),
    "op of reduce_scatter": (lambda t: reduce_scatter(t, "sum"), lambda t: reduce_scatter(t, "min"), "min)"),
    "dtype": (usual, lambda t: unisono.all_reduce(t.int()), "int32[5000]"),
    "dtype of data": (lambda t: unisono.broadcast(t, 0), lambda t: unisono.broadcast(t.int(), 0), "int32[5000]"),
    "count": (usual, lambda t: unisono.all_reduce(t[1:]), "float32[4999]"),
    "count, one of them short": (usual, lambda t: unisono.all_reduce(t[:1]), "float32[1]"),
    "count, both short": (lambda t: unisono.all_reduce(t[:2]), lambda t: unisono.all_reduce(t[:1]), "float32[1]"),
    "nothing": (usual, lambda t: unisono.all_reduce(t[:0]), "float32[0]"),
    "root": (lambda t: unisono.broadcast(t, 0), lambda t: unisono.broadcast(t, 1), "src=1"),
    "root of reduce": (lambda t: unisono.reduce(t, 1), lambda t: unisono.reduce(t, 0), "dst=0"),
    "collective": (usual, lambda t: unisono.reduce(t, 0), "reduce(float32[5000], dst=0, sum)"),
    "collective and barrier": (usual, lambda t: unisono.barrier(), "barrier()"),
    "gather and all_gather": (lambda t: unisono.all_gather_single(wide(), t),
                              lambda t: unisono.all_to_all_single(wide(), wide()), "all_to_all"),
    "algorithm": (usual, lambda t: unisono.all_reduce(t, algorithm="ring"), "all_reduce.ring"),
    "algorithms of one name": (lambda t: unisono.all_gather_single(wide(), t, algorithm=upwards),
                               lambda t: unisono.all_gather_single(wide(), t, algorithm=downwards), "all_gather.walk"),
    "foreground and background": (usual, lambda t: unisono.all_reduce(t, "product", async_op=True).wait(),
                                  "product)"),
}  # fmt: skip


def disagree(name: str, odd: int) -> tuple[dict[int, CallRecord], tuple[int, ...], str, int]:
    """Make the call of the others, or of the odd one; return what the error said, when all was as it should be."""
    group = unisono.init()
    most, other, _ = DIFFERENT[name]
    mine, before = tensor(), tensor()
    unisono.barrier()  # nobody waits longer than a second for the side of a late rank
    number = group.engine.call_number
    with pytest.raises(MismatchError) as caught:
        (other if group.rank == odd else most)(mine)
    assert torch.equal(mine, before)
    assert group.engine.call_number > number
    for _ in range(3):
        unisono.all_reduce(mine)
        assert torch.equal(mine, sum(torch.arange(COUNT) % 100 + rank for rank in range(group.size)).float())
        mine.copy_(before)
    return caught.value.calls, caught.value.odd, str(caught.value), caught.value.number


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize(("ranks", "odd"), [(2, 1), (3, 0), (4, 2)])
def test_every_rank_raises_the_same_table(worlds: Worlds, ranks: int, odd: int, name: str) -> None:
    if name == "algorithms of one name" and ranks == 2:
        pytest.skip("among two ranks up is down")
    results = worlds(ranks).run(disagree, name, odd)
    assert results == results[:1] * ranks
    calls, odd_ones, text, number = results[0]
    assert sorted(calls) == list(range(ranks))
    assert odd_ones == (odd,)
    assert DIFFERENT[name][2] in calls[odd].text
    assert all(call.where.split(":")[0] == __file__ for call in calls.values())
    assert len({call.text for call in calls.values()}) == 2
    assert f"#{number}: the ranks disagree (rank {odd} differs from the rest)" in text
    assert text.splitlines()[1].startswith(f"  rank {odd}  ")


@pytest.mark.ranks(4)
def test_three_ways_to_differ() -> None:
    unisono.barrier()
    with pytest.raises(MismatchError) as caught:
        unisono.all_reduce(tensor(), ["sum", "max", "min", "max"][unisono.init().rank])
    assert caught.value.odd == (0, 2)


@pytest.mark.parametrize("count", [3, COUNT])
@pytest.mark.ranks(3)
def test_late_rank_raises_when_others_went_on(count: int) -> None:
    """The others stop waiting for its side, raise, and are in the next call when it makes the one they refused."""
    group = unisono.init()
    number = group.engine.call_number
    until(lambda: group.rank != 2 or min(group.engine.entered(rank) for rank in (0, 1)) > number)
    with pytest.raises(MismatchError) as caught:
        unisono.all_reduce(tensor(count), "max" if group.rank == 1 else "sum")
    assert caught.value.number == number
    total = torch.ones(count)
    unisono.all_reduce(total)
    assert total.mean() == 3
    assert group.rank != 2 or caught.value.odd == (1,)


@pytest.mark.ranks(2)
def test_what_follows_in_the_background_goes_on() -> None:
    rank = unisono.init().rank
    tensors = [tensor() for _ in range(4)]
    works = [unisono.all_reduce(t, "max" if rank == k == 1 else "sum", async_op=True) for k, t in enumerate(tensors)]
    for k, work in enumerate(works):
        with pytest.raises(MismatchError) if k == 1 else nullcontext():
            assert work.wait()
    assert isinstance(works[1].exception(), MismatchError)
    assert not works[1].is_success()
    assert torch.equal(tensors[1], tensor())
    assert not torch.equal(tensors[2], tensor())


@in_new_world(3, all_give="(1,)")
def test_ranks_agree_on_settings_of_programs() -> str:
    group = unisono.init()
    if group.rank == 1:
        group.engine.config = group.engine.config.replace(segment_bytes=1 << 16)
    with pytest.raises(MismatchError, match="table and configuration") as caught:
        unisono.all_reduce(torch.ones(400_000))
    return str(caught.value.odd)


@pytest.mark.parametrize("count", [3, COUNT])
@in_new_world(2, all_give=[(1 << 32) - 1 + 2 * k for k in range(4)])
def test_call_numbers_beyond_32_bits(count: int) -> list[int]:
    group, numbers = unisono.init(), []
    group.engine.words[StateWord.CALL] = (1 << 32) - 2
    for k in range(4):
        total = torch.ones(count)
        unisono.all_reduce(total)
        assert total.mean() == 2
        with pytest.raises(MismatchError) as caught:
            unisono.all_reduce(tensor(count), "max" if unisono.get_rank() == k % 2 else "sum")
        numbers.append(caught.value.number)
    return numbers
