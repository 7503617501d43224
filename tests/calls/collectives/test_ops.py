"""Ops in calls: what may be done in which order, ops made of functions, scaled sums, scans, refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
import torch

import unisono
from tests.support.worlds import Worlds
from unisono.base.errors import AlgorithmError
from unisono.schedule import prove
from unisono.schedule.algorithms import CATALOGUE


def values(rank: int, count: int = 7) -> torch.Tensor:
    return (torch.arange(count) * 3 + rank * 5) % 11 + 1.0


def affine(x: float, y: float) -> float:
    """Neither commutative nor associative."""
    return x * 0.5 + y


def fold(function: Callable[[Any, Any], Any], ranks: int, count: int = 7) -> torch.Tensor:
    return reduce(function, [values(q, count) for q in range(ranks)])


@pytest.mark.ranks(3)
def test_a_function_of_whole_tensors_may_be_a_matrix_product() -> None:
    me, p = unisono.get_rank(), unisono.get_world_size()
    product = unisono.make_op(torch.matmul, elementwise=False, name="matmul")
    tensor = values(me, 4).view(2, 2)
    unisono.all_reduce(tensor, product)
    assert torch.equal(tensor, reduce(torch.matmul, [values(q, 4).view(2, 2) for q in range(p)]))
    with pytest.raises(unisono.DTypeError, match=r"op 'wrong' returned float32\[1\]; it must return a tensor like"):
        unisono.all_reduce(values(me, 4), unisono.make_op(lambda a, b: (a + b)[:1], elementwise=False, name="wrong"))
    with pytest.raises(ZeroDivisionError):
        unisono.all_reduce(values(me, 4), unisono.make_op(lambda _, __: 1 / 0, elementwise=False))
    unisono.barrier()


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("ranks", [3, 4])
def test_algorithms_that_leave_rank_order_are_refused_to_ops_that_do_not_commute(worlds: Worlds, ranks: int) -> None:
    """Whoever is not refused gives the left fold's result, for an associative op that does not commute."""

    def work() -> tuple[int, int]:
        me, p = unisono.get_rank(), unisono.get_world_size()
        # Exact in float64 and associative, not commutative: keep the first that is not zero.
        first = unisono.make_op(lambda x, y: x if x != 0.0 else y, name="first")
        either = unisono.make_op(lambda x, y: max(x, y), commutative=True, name="larger")
        taken = refused = 0
        inputs = [torch.tensor([float(q), q + 1.0, 0.0]) for q in range(p)]
        for algorithm in CATALOGUE.values():
            if algorithm.collective != "all_reduce" or not algorithm.allows(p):
                continue
            tensor = inputs[me].clone()
            unisono.all_reduce(tensor, either, algorithm=algorithm.name)
            assert tensor.tolist() == [p - 1.0, p, 0.0], algorithm.name
            tensor = inputs[me].clone()
            try:
                unisono.all_reduce(tensor, first, algorithm=algorithm.name)
            except unisono.ArgumentError as error:
                assert "is not declared commutative" in str(error)  # noqa: PT017  the other outcome is as good
                refused += 1
                with pytest.raises(AlgorithmError, match="for ops that do not commute"):
                    prove(algorithm.schedule(p), ordered=True)
            else:
                assert tensor.tolist() == [1.0, 1.0, 0.0], algorithm.name
                taken += 1
        return taken, refused

    taken, refused = worlds(ranks).run(work)[0]
    assert taken >= 3
    assert refused >= 3


@pytest.mark.ranks(3)
def test_an_op_that_is_not_associative_is_made_in_one_pass_or_refused() -> None:
    op = unisono.make_op(affine, commutative=True, associative=False)
    with pytest.raises(unisono.ArgumentError, match="declared not to be associative"):
        unisono.all_reduce(values(unisono.get_rank()), op, algorithm="ring")
    unisono.barrier()


@pytest.mark.ranks(3)
def test_many_refusals_in_a_row_leave_the_ranks_together() -> None:
    me = unisono.get_rank()
    for turn in range(200):
        with pytest.raises(unisono.UsageError):
            unisono.all_reduce(torch.ones(3), "avg", algorithm="nothing") if turn % 3 else unisono.reduce(1, 0)
        if turn % 7 == me:
            pending = unisono.all_reduce(torch.ones(4), async_op=True)
            with pytest.raises(unisono.UsageError):
                unisono.all_reduce("no tensor")
            pending.wait()
        elif turn % 7 < unisono.get_world_size():
            unisono.all_reduce(torch.ones(4))
            with pytest.raises(unisono.UsageError):
                unisono.all_reduce("no tensor")
    tensor = torch.tensor([1.0])
    unisono.all_reduce(tensor)
    assert tensor.item() == 3.0


@pytest.mark.ranks(2)
def test_quantized_tensors_move_with_their_scale() -> None:
    me, p = unisono.get_rank(), unisono.get_world_size()

    def quantized(rank: int, scale: float = 0.5) -> torch.Tensor:
        return torch.quantize_per_tensor(values(rank), scale, 3, torch.quint8)

    tensor = quantized(me)
    unisono.broadcast(tensor, 1)
    assert torch.equal(tensor.int_repr(), quantized(1).int_repr())
    out = [quantized(0) for _ in range(p)]
    unisono.all_gather(out, quantized(me))
    assert all(torch.equal(out[q].int_repr(), quantized(q).int_repr()) for q in range(p))
    with pytest.raises(unisono.MismatchError, match=r"\* 0.25 \+ 3"):
        unisono.broadcast(quantized(me, 0.25 if me == 1 else 0.5), 0)
