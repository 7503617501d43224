"""Blocks of several sizes, in every collective that moves blocks; all_gather also of sizes that no rank knows."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch

import unisono
from tests.support.matrix import FORMS, Case, ops
from tests.support.matrix_driver import algorithms, check, forget


def block(source: int, dest: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What one rank gives another: different for every pair, and in every place."""
    return ((torch.arange(count) * 3 + source * 17 + dest * 5) % 101).to(dtype)


def equal(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> None:
    assert len(got) == len(want)
    for k, (x, y) in enumerate(zip(got, want, strict=True)):
        assert x.dtype == y.dtype, k
        assert torch.equal(x.flatten(), y.flatten()), (k, x, y)


def empties(sizes: Sequence[int]) -> list[torch.Tensor]:
    return [torch.full((n,), -1.0) for n in sizes]


UNEVEN = [form for form, kinds in FORMS.items() if "uneven" in kinds]


def of_any_size(form: str, blocks: str, n: int, seed: int, **more: Any) -> Case:
    """A call with blocks of random sizes, which the taker knows or not."""
    return Case(
        form, "float32", ops(form, "float32")[0], n, "contiguous", blocks, seed=seed, root=seed, exact=True, **more
    )


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(2, 3)
def test_blocks_longer_than_a_segment() -> None:
    for seed, form in product(range(2), UNEVEN):
        check(of_any_size(form, "uneven", 300_000, seed))
    forget()


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(3, 4)
def test_every_algorithm_takes_uneven_blocks() -> None:
    for form in UNEVEN:
        for name, seed in product(algorithms(form), (1, 2)):
            check(of_any_size(form, "uneven", 9, seed), name)


@pytest.mark.ranks(2)
def test_algorithm_is_checked_before_sizes() -> None:
    me, group, tensor = unisono.get_rank(), unisono.init(), torch.zeros(2)
    number = group.engine.call_number
    calls: list[Callable[[str | None], Any]] = [
        lambda name: unisono.all_gather(None, tensor, algorithm=name),
        lambda name: unisono.gather(tensor, None if me else empties([2, 2]), algorithm=name),
        lambda name: unisono.scatter(tensor, None if me else empties([2, 2]), algorithm=name),
        lambda name: unisono.all_to_all(empties([2, 2]), empties([2, 2]), algorithm=name),
    ]
    for k, call in enumerate(calls, 1):
        with pytest.raises(unisono.MismatchError if me else unisono.ArgumentError, match="bogus"):
            call(None if me else "bogus")
        assert group.engine.call_number == number + k


@pytest.mark.ranks(3)
def test_even_and_uneven_calls_alternate() -> None:
    """In gather only the root knows that sizes differ; even and uneven calls take turns."""
    me, p = unisono.get_rank(), unisono.get_world_size()
    for turn in range(40):
        sizes = [4, 4, 4] if turn % 3 else [4, 4, 2 + turn % 2]
        made = unisono.all_gather(None, block(me, turn, sizes[me]))
        equal(made, [block(q, turn, sizes[q]) for q in range(p)])
        out = empties(sizes) if me == 1 else None
        unisono.gather(block(me, turn, sizes[me]), out, 1)
        if out:
            equal(out, [block(q, turn, sizes[q]) for q in range(p)])
        whole = torch.full((12,), -1.0)
        unisono.all_gather_single(whole, block(me, turn, 4))
        assert torch.equal(whole, torch.cat([block(q, turn, 4) for q in range(p)]))


@pytest.mark.ranks(2, 3)
def test_whole_tensor_on_one_rank_meets_lists() -> None:
    me, p = unisono.get_rank(), unisono.get_world_size()
    mine, whole = block(me, 0, 3), torch.zeros(p, 3)
    made = empties([3] * p)
    unisono.all_gather(made, mine) if me == 0 else unisono.all_gather_single(whole, mine)
    got = torch.stack(made) if me == 0 else whole
    assert torch.equal(got, torch.stack([block(q, 0, 3) for q in range(p)]))
    strided = torch.zeros(p, 6)[:, ::2]
    unisono.all_gather(made, mine) if me == 0 else unisono.all_gather_single(strided, mine)
    assert me == 0 or torch.equal(strided, got)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.ranks(3)
def test_all_gather_of_unknown_shapes(later: bool) -> None:
    me = unisono.get_rank()
    mine = torch.full((2, me), me, dtype=torch.int16).t()
    made = unisono.all_gather(None, mine, async_op=later)
    gathered = made.result() if later else made
    assert [tensor.tolist() for tensor in gathered] == [[], [[1, 1]], [[2, 2], [2, 2]]]
    assert {tensor.dtype for tensor in gathered} == {torch.int16}


@pytest.mark.ranks(2)
def test_all_gather_of_unknown_shapes_refuses() -> None:
    me = unisono.get_rank()
    known = [torch.zeros(3), torch.zeros(3)]
    with pytest.raises(unisono.MismatchError, match="of unknown sizes"):
        unisono.all_gather(known if me else None, torch.zeros(3))
    with pytest.raises(unisono.ArgumentError, match="9 dimensions"):
        unisono.all_gather(None, torch.zeros([1] * 9))
    assert len(unisono.all_gather(None, torch.zeros([1] * 8))) == 2


@pytest.mark.ranks(2, 3)
def test_wrong_sizes_name_rank_and_both_sizes(ranks: int) -> None:
    """The last rank has 5 elements where the others have 3."""
    me, last = unisono.get_rank(), ranks - 1
    mine, lists = 5 if me == last else 3, empties([3] * ranks)
    calls: list[tuple[Callable[[], Any], tuple[str, ...]]] = [
        (
            lambda: unisono.gather(torch.zeros(mine), None if me else lists, 0),
            (f"rank {last} differs", "gives rank 0 5 elements", f"expects 3 elements from rank {last}"),
        ),
        (
            lambda: unisono.scatter(torch.zeros(mine), None if me else lists, 0),
            (f"gives rank {last} 3 elements", "expects 5 elements from rank 0"),
        ),
        (lambda: unisono.all_to_all(lists, empties([3] * last + [mine])), ("5 elements",)),
        (
            lambda: unisono.all_gather_single(torch.zeros(ranks * mine), torch.zeros(mine)),
            (f"rank {last}  all_gather(float32[5])",),
        ),
        (
            lambda: unisono.all_gather(None, torch.zeros(3, dtype=torch.int32 if me == last else torch.int64)),
            ("int32", "int64"),
        ),
    ]
    for call, words in calls:
        with pytest.raises(unisono.MismatchError) as caught:
            call()
        said = str(caught.value).replace("\n", " ")
        assert all(word in said for word in words), said
        unisono.barrier()
