"""Kernels made of users' functions, against the same functions of torch."""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numba
import numpy as np
import pytest
import torch

from tests.support.reducers_driver import data, expected, result, run, same_bits
from unisono.base.errors import DTypeError
from unisono.calls.ops import make_op
from unisono.engine.reducers import DTYPES, CustomOp, check_combine, combine_address, custom_kernels

TENSOR_SHAPES = [(1, 5), (2, 1), (2, 65), (3, 0), (3, 257), (5, 256), (8, 1000)]
"""(inputs, elements): kernels work on blocks of 256."""

ADD = make_op(lambda x, y: x + y, name="add")
HALVE = make_op(lambda x, y: x * 0.5 + y, name="halve", associative=False)


@make_op
def gcd(x: Any, y: Any) -> Any:
    while y:
        x, y = y, x % y
    return abs(x)


@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_of_ones_own_is_the_sum(dtype: str) -> None:
    """Every dtype, from memory to a function and back, with the bits of the kernel that is built in."""
    for nin, count in TENSOR_SHAPES:
        inputs = data(dtype, nin, count, seed=nin + count)
        before = [tensor.clone() for tensor in inputs]
        want = expected("sum", True, inputs)
        outputs = [torch.empty_like(want) for _ in range(1 + nin % 3)]
        run(ADD, True, inputs, outputs, nin)
        assert all(same_bits(out, want) for out in outputs), (nin, count)
        assert all(map(same_bits, inputs, before))
        if count:
            run(ADD, False, inputs, [inputs[-1]], nin)
            assert same_bits(inputs[-1], want)


def check(op: CustomOp, of_torch: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dtype: str) -> None:
    for nin, count in TENSOR_SHAPES:
        inputs = data(dtype, nin, count, seed=nin + count)
        torch.testing.assert_close(result(op, True, inputs), reduce(of_torch, inputs), rtol=1e-13, atol=1e-13)


def test_inputs_are_combined_from_left_to_right() -> None:
    check(HALVE, lambda x, y: x * 0.5 + y, "float64")
    inputs = [torch.full((300,), x) for x in (8.0, 4.0, 2.0, 1.0)]
    assert result(HALVE, True, inputs).tolist() == [4.0] * 300


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_greatest_common_divisors(dtype: str) -> None:
    factors = [torch.arange(300).remainder(7) * k for k in (6, 10, 4)]
    inputs = [tensor.to(getattr(torch, dtype)) for tensor in factors]
    want = reduce(torch.gcd, factors).to(inputs[0].dtype)
    assert torch.equal(result(gcd, True, inputs), want)


def test_c_and_numba_functions_become_ops() -> None:
    check(make_op(math.hypot), torch.hypot, "float64")
    check(make_op(np.maximum), torch.maximum, "float64")
    check(make_op(numba.njit(lambda x, y: x - y)), torch.sub, "float64")
    helper = numba.njit(lambda x: x * x)
    check(make_op(lambda x, y: x + helper(y), name="squares"), lambda x, y: x + y * y, "float64")


def test_results_take_the_dtype_of_arguments() -> None:
    seven, two = torch.full((65,), 7, dtype=torch.int8), torch.full((65,), 2, dtype=torch.int8)
    assert result(HALVE, True, [seven, two]).tolist() == [5] * 65  # 5.5, cut
    assert result(make_op(lambda x, y: x > y, name="more"), True, [seven, two]).tolist() == [1] * 65
    assert result(make_op(lambda x, y: x * y * 20, name="wraps"), True, [seven, two]).tolist() == [24] * 65  # 280
    assert result(ADD, True, [seven > two, two > seven]).tolist() == [True] * 65


def test_division_by_zero_is_a_number() -> None:
    divide = make_op(lambda x, y: x // y + x % y, name="divide")
    for dtype in (torch.int32, torch.int64):
        top, zero = torch.full((65,), 7, dtype=dtype), torch.zeros(65, dtype=dtype)
        assert result(divide, True, [top, zero]).tolist() == [0] * 65
        result(divide, True, [zero + torch.iinfo(dtype).min, zero - 1])  # overflows, and processors trap it
    top = torch.tensor([1.0, -1.0, 0.0])
    assert str(result(make_op(lambda x, y: x / y), True, [top, torch.zeros(3)]).tolist()) == "[inf, -inf, nan]"


def plain_helper(x: Any) -> Any:
    return x + 1


def raises(x: Any, y: Any) -> Any:
    if x > 3:
        raise ValueError("too large")
    return x + y


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a, b: a @ b, "matmul"),
        (lambda a, b: a[0] + b, "getitem"),
        (lambda a, b: a.shape, "Unknown attribute 'shape'"),
        (lambda x, y: plain_helper(x) + y, "Untyped global name 'plain_helper'"),
        (lambda x: x, "takes 1 arguments"),
        (torch.maximum, "Cannot determine Numba type"),
        (lambda x, y: None, "it returns none for two float32"),
        (lambda x, y: (x, y), "it returns UniTuple"),
        (lambda x, y: str(x), "it returns "),
        (lambda x, y: x + 1j * y, "it returns complex"),
        (raises, "may raise an exception"),
        (lambda x, y: [x, y].index(3), "may raise an exception"),
    ],
)
def test_invalid_kernels_are_refused(function: Any, reason: str) -> None:
    op = make_op(function, name="mine")
    check_combine("float32", op)
    with pytest.raises(DTypeError, match=r"op mine: .*float32.*only numbers and math") as caught:
        combine_address("float32", op, last=True)
    assert reason in str(caught.value)


def test_a_dtype_that_is_only_moved_is_refused() -> None:
    with pytest.raises(DTypeError, match="add: got quint8 tensors"):
        check_combine("quint8", ADD)


def test_many_new_ops_warn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_kernels, "_MANY", 3)
    monkeypatch.setattr(custom_kernels, "_compiled_ops", [])

    def made(factor: float) -> list[float]:
        op = make_op(lambda x, y: x * factor - y, name="scaled")
        return result(op, True, [torch.ones(2), torch.ones(2)]).tolist()

    assert made(20.0) == made(20.0) == made(20.0) == [19.0] * 2  # one kernel
    assert made(30.0) == [29.0] * 2
    with pytest.warns(RuntimeWarning, match=r"compiled 3 kernels .*, 3 of them for 'scaled', the last one at .*\.py:"):
        assert made(40.0) == [39.0] * 2
    assert made(50.0) == [49.0] * 2  # a warning would be an error


def test_one_kernel_serves_equal_ops() -> None:
    def made(factor: float) -> CustomOp:
        return make_op(lambda x, y: x + factor * y, name="weighted")

    assert combine_address("float32", made(2.0), last=True) == combine_address("float32", made(2.0), last=False)
    assert result(made(2.0), True, [torch.ones(3), torch.ones(3)]).tolist() == [3.0] * 3
    assert result(made(3.0), True, [torch.ones(3), torch.ones(3)]).tolist() == [4.0] * 3
