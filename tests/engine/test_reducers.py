"""Combine kernels against torch, bit for bit: every dtype and op, all float8 codes, and kernels of users' functions."""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numba
import numpy as np
import pytest
import torch

from tests.support.reducers_driver import (
    BITWISE,
    FLOAT8,
    FLOATS,
    NUMERIC,
    PAIRS,
    data,
    expected,
    result,
    run,
    same_bits,
)
from unisono.base.errors import DTypeError
from unisono.calls.ops import make_op
from unisono.engine.reducers import DTYPES, CustomOp, check_combine, combine_address, custom_kernels

SHAPES = [
    *((3, count) for count in (0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 1000)),
    *((k, 131) for k in range(1, 9)),
]
"""(inputs, elements): kernels work on up to 64 elements at a time, and one by one on the rest."""

GUARD = 3


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_every_kernel_equals_torch(dtype: str, op: str) -> None:
    for last in (False, True) if op == "avg" else (True,):
        for nin, count in SHAPES:
            inputs = data(dtype, nin, count, seed=nin * 1000 + count)
            before = [tensor.clone() for tensor in inputs]
            nout = 1 + (count + nin) % 3
            # Outputs lie between guards, and where no vector is aligned.
            wide = [torch.zeros(count + 2 * GUARD, dtype=inputs[0].dtype) for _ in range(nout)]
            run(op, last, inputs, [tensor[GUARD : GUARD + count] for tensor in wide], nin)
            want = expected(op, last, inputs)
            for tensor in wide:
                assert same_bits(tensor[GUARD : GUARD + count], want), (last, nin, count)
                guards = torch.cat([tensor[:GUARD].view(torch.uint8), tensor[GUARD + count :].view(torch.uint8)])
                assert not guards.any()
            assert all(map(same_bits, inputs, before))
    for own in range(3):  # an input is an output, too; elements are aligned, vectors are not
        inputs = [tensor[own + 1 :] for tensor in data(dtype, 3, 132 + own, seed=own)]
        want = expected(op, True, inputs)
        run(op, True, inputs, [inputs[own], torch.empty_like(want)], 3)
        assert same_bits(inputs[own], want), own


SPECIAL = [0.0, -0.0, 1.0, -1.5, float("inf"), -float("inf"), float("nan")]


@pytest.mark.parametrize("op", NUMERIC)
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype: str, op: str) -> None:
    """Zeros of both signs, infinities, NaN, the largest, the smallest and subnormal numbers, each with each."""
    info = torch.finfo(getattr(torch, dtype))
    subnormal = info.smallest_normal / 2
    values = torch.tensor([*SPECIAL, info.max, info.min, info.smallest_normal, subnormal, -subnormal, info.eps])
    values = torch.tensor([*values.tolist(), info.max, info.max / 2], dtype=torch.float64).to(getattr(torch, dtype))
    n = len(values)
    bits = values.view(torch.uint8).view(n, -1)  # not every function of torch knows float8
    first, second, third = (
        bits[index].flatten().view(values.dtype)
        for index in torch.cartesian_prod(torch.arange(n), torch.arange(n), torch.arange(n)).T
    )
    assert same_bits(result(op, True, [first, second, third]), expected(op, True, [first, second, third]))
    assert same_bits(result(op, True, [first, second]), expected(op, True, [first, second]))


def test_any_byte_but_zero_is_true() -> None:
    bytes_ = [torch.tensor([0, 1, 2, 255, 0] * 17, dtype=torch.uint8), torch.tensor([0, 2, 1, 2, 4] * 17).byte()]
    for op, want in (("sum", [0, 1, 1, 1, 1]), ("band", [0, 1, 1, 1, 0]), ("bxor", [0, 0, 0, 0, 1])):
        got = result(op, True, [tensor.view(torch.bool) for tensor in bytes_])
        assert got.view(torch.uint8).tolist() == want * 17


@pytest.mark.parametrize("op", NUMERIC + BITWISE)
def test_refusal_names_the_dtypes_of_an_op(op: str) -> None:
    """The same list decides which dtypes are refused."""
    with pytest.raises(DTypeError, match=f"{op}: got complex32 tensors, expected one of ") as caught:
        check_combine("complex32", op)
    named = str(caught.value).partition(", expected one of ")[2].partition(".")[0].split(", ")
    assert sorted(named) == sorted(dtype for dtype, its_op in PAIRS if its_op == op)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_is_converted_as_by_torch(dtype: str) -> None:
    """Sums, products and quotients of all pairs of codes: among codes, subnormal numbers, and beyond the last."""
    codes, kind = torch.arange(256, dtype=torch.uint8), getattr(torch, dtype)
    pair = [codes.repeat_interleave(256).view(kind), codes.repeat(256).view(kind)]
    x, y = (tensor.float() for tensor in pair)
    mean = make_op(lambda x, y: (x + y) / 3, name="third")
    for op, wanted in {"sum": x + y, "product": x * y, mean: (x + y) / 3}.items():
        assert same_bits(result(op, True, pair), wanted.to(kind)), op
    assert same_bits(result("avg", True, [*pair, pair[0]]), ((x + y + x) / 3).to(kind))
    assert same_bits(result("max", True, pair), torch.maximum(x, y).to(kind).where(x != y, pair[1]))


TENSOR_SHAPES = [(1, 5), (2, 1), (2, 65), (3, 0), (3, 257), (5, 256), (8, 1000)]
"""(inputs, elements): kernels work on blocks of 256."""

ADD = make_op(lambda x, y: x + y, name="add")
HALVE = make_op(lambda x, y: x * 0.5 + y, name="halve", associative=False)


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


def test_many_new_ops_warn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_kernels, "_MANY", 3)
    monkeypatch.setattr(custom_kernels, "_compiled_ops", [])

    def made(factor: float) -> list[float]:
        op = make_op(lambda x, y: x * factor - y, name="scaled")
        assert combine_address("float32", op, last=True) == combine_address("float32", op, last=False)
        return result(op, True, [torch.ones(2), torch.ones(2)]).tolist()

    assert made(20.0) == made(20.0) == made(20.0) == [19.0] * 2  # one kernel
    assert made(30.0) == [29.0] * 2
    with pytest.warns(RuntimeWarning, match=r"compiled 3 kernels .*, 3 of them for 'scaled', the last one at .*\.py:"):
        assert made(40.0) == [39.0] * 2
    assert made(50.0) == [49.0] * 2  # a warning would be an error
