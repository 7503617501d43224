"""Ops by all their names, when two of a user's own are the same, and what calls do with them."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist

import unisono
from unisono.base.errors import AlgorithmError, ArgumentError, DTypeError
from unisono.calls.ops import PremulSum, ReduceOp, make_op, premul_sum, resolve
from unisono.engine.reducers import OPS, CustomOp
from unisono.schedule import prove
from unisono.schedule.algorithms import CATALOGUE

FACTOR = 2


def with_factor(x: Any, y: Any) -> Any:
    return x + FACTOR * y


def factorial(x: Any, y: Any) -> Any:
    return y if x < 1 else factorial(x - 1, x * y)


@pytest.mark.parametrize("name", OPS)
def test_ops_have_many_names(name: str) -> None:
    of_torch = getattr(dist.ReduceOp, name.upper())
    for op in (name, name.upper(), name.title(), getattr(ReduceOp, name.upper()), of_torch, dist.ReduceOp(of_torch)):
        assert resolve(op) == name


def test_aliases() -> None:
    assert [resolve(op) for op in ("mul", "Prod", "MEAN")] == ["product", "product", "avg"]


def test_premultiplied_sums() -> None:
    factors = (2.5, torch.tensor([2.5]), torch.tensor(2.5, dtype=torch.float64))
    for op in (premul_sum(2.5), ReduceOp.PREMUL_SUM(2.5), *map(premul_sum, factors)):
        assert resolve(op) == PremulSum(2.5)
    for factor in (2.5, torch.tensor([2.5])):
        assert resolve(dist._make_nccl_premul_sum(factor)) == PremulSum(2.5)
    assert premul_sum(3) == premul_sum(torch.tensor(3))
    assert len({premul_sum(2.5), premul_sum(2.5), premul_sum(3.5)}) == 2
    assert premul_sum(2.5).text == premul_sum(3.5).text  # ranks may differ in their factors


@pytest.mark.parametrize(
    ("ops", "error", "says"),
    [
        (["xor", "", "premul_sum"], ArgumentError, "unknown op '{}'. Use one of sum, .*make_op"),
        ([dist.ReduceOp.PREMUL_SUM, ReduceOp.PREMUL_SUM], ArgumentError, "needs a factor"),
        ([None, 3, 1.5, [], ["sum"]], DTypeError, "is not a reduce op. Use one of sum"),
        ([max, torch.add, lambda x, y: x], DTypeError, "make_op"),
    ],
)
def test_invalid_ops_are_refused(ops: list[object], error: type[Exception], says: str) -> None:
    for op in ops:
        with pytest.raises(error, match=says.format(op)):
            resolve(op)


def test_own_ops_keep_their_flags() -> None:
    op = make_op(max)
    assert resolve(op) is op
    assert (op.name, op.commutative, op.associative) == ("max", False, True)
    op = make_op(lambda a, b: a * b, commutative=True, associative=False)
    assert (op.name, op.commutative, op.associative) == ("lambda", True, False)
    assert make_op(with_factor).name == "with_factor"
    assert make_op(with_factor, name="mine").text.startswith("mine#")


# Makers of functions. What is made twice of the same maker is the same op; of two makers, never.
def adds(weight: Any) -> Callable[[Any, Any], Any]:
    return lambda x, y: x + weight * y


def subtracts(weight: Any) -> Callable[[Any, Any], Any]:
    return lambda x, y: x - weight * y


def defaults(weight: Any) -> Callable[[Any, Any], Any]:
    return lambda x, y, weight=weight: x + weight * y


def calls(function: Any) -> Callable[[Any, Any], Any]:
    return lambda x, y: function(x, y)


def contains() -> Callable[[Any, Any], Any]:
    return lambda x, y: x in {"a", "b", "c", "d", 1, 2.0} or y


MAKERS: list[Callable[[], Any]] = [
    *(partial(adds, weight) for weight in (1, 2, 1.0, (1, 2), "1", True, [1, 2, 3])),
    *(partial(defaults, weight) for weight in (1, 2)),
    *(partial(calls, called) for called in (math.gcd, math.hypot, np.maximum, np.minimum, torch.maximum, int)),
    lambda: calls(adds(1)),
    lambda: calls(adds(2)),
    lambda: calls(partial(max, 3)),
    lambda: calls(partial(max, 4)),
    lambda: subtracts(1),
    lambda: lambda x, y: math.sin(x) + y,
    lambda: lambda x, y: math.cos(x) + y,
    lambda: lambda x, y: sum([x * k for k in range(3)]) + y,
    lambda: lambda x, y: sum([x * k for k in range(4)]) + y,
    contains,
    lambda: with_factor,
    lambda: factorial,
]


def test_ops_are_equal_if_their_functions_are() -> None:
    once, again = ([make_op(maker(), name="op") for maker in MAKERS] for _ in range(2))
    assert once == again
    assert [op.text for op in once] == [op.text for op in again]
    assert len(set(once)) == len({op.text for op in once}) == len(MAKERS)
    assert len(set(once + again)) == len(MAKERS)


def test_name_and_flags_make_a_difference() -> None:
    flags: tuple[dict[str, Any], ...] = ({}, {"commutative": True}, {"associative": False}, {"name": "mine"})
    ops = [make_op(with_factor, **kwargs) for kwargs in flags]
    assert len(set(ops)) == len({op.text for op in ops}) == len(flags)
    assert make_op(with_factor) != "with_factor"


def test_globals_make_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_op(with_factor)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert make_op(with_factor) != before
    assert make_op(with_factor).text != before.text


def test_captured_tensors_differ_outside_the_text() -> None:
    first, second = torch.ones(2), torch.ones(2)
    assert make_op(adds(first)) == make_op(adds(first))
    assert make_op(adds(first)) != make_op(adds(second))
    assert make_op(adds(first)).text == make_op(adds(second)).text


@pytest.mark.parametrize("maker", MAKERS)
def test_ops_can_be_sent(maker: Callable[[], Any]) -> None:
    op = make_op(maker(), commutative=True)
    got = cloudpickle.loads(cloudpickle.dumps(op))
    assert got == op
    assert (got.text, got.name, got.commutative, hash(got)) == (op.text, op.name, True, hash(op))


@pytest.mark.ranks(3)
def test_ranks_agree_on_an_op() -> None:
    """Sent to them, or made by them, it has the same text."""

    def again() -> CustomOp:
        return make_op(lambda x, y: x in {"a", "b", "c", "d", 1, 2.0} or y, name="op")

    texts: list[Any] = [None] * 3
    unisono.all_gather_object(texts, (SENT.text, again().text))
    assert {text for pair in texts for text in pair} == {SENT.text}


SENT = make_op(contains(), name="op")


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(3, 4)
def test_rank_order_of_ops_that_do_not_commute(ranks: int) -> None:
    """An algorithm gives the left fold's result, or is refused to an associative op that does not commute."""
    me, refused = unisono.get_rank(), list[bool]()
    # Exact in float64 and associative, not commutative: keep the first that is not zero.
    first = unisono.make_op(lambda x, y: x if x != 0.0 else y, name="first")
    either = unisono.make_op(lambda x, y: max(x, y), commutative=True, name="larger")
    for algorithm in CATALOGUE.values():
        if algorithm.collective != "all_reduce" or not algorithm.allows(ranks):
            continue
        tensor, larger = (torch.tensor([float(me), me + 1.0, 0.0]) for _ in range(2))
        unisono.all_reduce(larger, either, algorithm=algorithm.name)
        assert larger.tolist() == [ranks - 1.0, ranks, 0.0], algorithm.name
        try:
            prove(algorithm.schedule(ranks), ordered=True)
            refused.append(False)
        except AlgorithmError:
            refused.append(True)
        words = (
            pytest.raises(unisono.ArgumentError, match="is not declared commutative") if refused[-1] else nullcontext()
        )
        with words:
            unisono.all_reduce(tensor, first, algorithm=algorithm.name)
            assert tensor.tolist() == [1.0, 1.0, 0.0], algorithm.name
    assert min(refused.count(True), refused.count(False)) >= 3
    op = unisono.make_op(torch.maximum, commutative=True, associative=False)
    with pytest.raises(unisono.ArgumentError, match="declared not associative"):
        unisono.all_reduce(torch.ones(9), op, algorithm="ring")


@pytest.mark.ranks(2, hosts="2x1")
def test_quantized_tensors_keep_their_bits() -> None:
    """On ranks that have made the same call with another scale before."""
    me = unisono.get_rank()

    def quantized(rank: int, scale: float) -> torch.Tensor:
        return torch.quantize_per_tensor((torch.arange(7) * 3 + rank * 5) % 11 + 1.0, scale, 3, torch.quint8)

    for scale in (0.5, 0.25, 0.5):
        tensor, out = quantized(me, scale), [quantized(0, scale) for _ in range(2)]
        unisono.all_gather(out, tensor)
        unisono.broadcast(tensor, 1)
        assert torch.equal(tensor.int_repr(), quantized(1, scale).int_repr())
        assert all(torch.equal(one.int_repr(), quantized(rank, scale).int_repr()) for rank, one in enumerate(out))
