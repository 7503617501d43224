"""Combine kernels against torch, bit for bit: every dtype and op, partial or last, any number of inputs and outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch

from unisono.engine.reducers import DTYPES, OPS, combine_address
from unisono.errors import DTypeError
from unisono.testing import combine

COUNTS = (0, 1, 2, 63, 64, 65, 127, 128, 131, 1000)
"""Kernels work on 64 elements at a time, and one by one on the rest."""

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int32", "int64", "uint8")
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
GUARD = 3


@cache
def kernel(dtype: str, op: str, last: bool) -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(combine_address(dtype, op, last))


def run(op: str, last: bool, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], ranks: int) -> None:
    ins = (ctypes.c_int64 * len(inputs))(*(tensor.data_ptr() for tensor in inputs))
    outs = (ctypes.c_int64 * len(outputs))(*(tensor.data_ptr() for tensor in outputs))
    name = str(inputs[0].dtype).removeprefix("torch.")
    kernel(name, op, last)(
        ctypes.addressof(outs), len(outputs), ctypes.addressof(ins), len(inputs), inputs[0].numel(), ranks
    )


def expected(op: str, last: bool, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    return combine(inputs, "sum" if op == "avg" and not last else op)


def result(op: str, last: bool, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    out = torch.empty_like(inputs[0])
    run(op, last, inputs, [out], len(inputs))
    return out


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Equal bit for bit; any NaN is as good as any other."""
    if x.dtype.is_floating_point:
        nan = x.isnan()
        if not torch.equal(nan, y.isnan()):
            return False
        x, y = x.masked_fill(nan, 0), y.masked_fill(nan, 0)
    bits = BITS[x.element_size()]
    return torch.equal(x.view(bits), y.view(bits))


def data(dtype: str, nin: int, count: int, seed: int) -> list[torch.Tensor]:
    """Any bit pattern for integers; for floats, numbers of many sizes."""
    draw = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    if dtype in INTEGERS:
        size = torch.empty(0, dtype=kind).element_size()
        return [torch.randint(256, (count * size,), generator=draw).to(torch.uint8).view(kind) for _ in range(nin)]
    drawn = torch.randn(nin, count, generator=draw, dtype=torch.float64)
    scale = torch.randint(-6, 7, (nin, count), generator=draw).double().exp2()
    return list((drawn * scale).to(kind))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kernel_equals_torch(dtype: str, op: str) -> None:
    for last in (False, True):
        for nin in (2, 3, 5, 8):
            for count in COUNTS:
                inputs = data(dtype, nin, count, seed=nin * 1000 + count)
                before = [tensor.clone() for tensor in inputs]
                nout = 1 + count % 3
                # Outputs lie between guards, and where no vector is aligned.
                wide = [torch.zeros(count + 2 * GUARD, dtype=inputs[0].dtype) for _ in range(nout)]
                run(op, last, inputs, [tensor[GUARD : GUARD + count] for tensor in wide], nin)
                for tensor in wide:
                    assert same_bits(tensor[GUARD : GUARD + count], expected(op, last, inputs)), (last, nin, count)
                    assert not tensor[:GUARD].any()
                    assert not tensor[GUARD + count :].any()
                assert all(map(same_bits, inputs, before))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_input_may_be_the_output(dtype: str, op: str) -> None:
    for own in range(3):
        inputs = data(dtype, 3, 131, seed=own)
        want = expected(op, True, inputs)
        run(op, True, inputs, [inputs[own], torch.empty_like(want)], 3)
        assert same_bits(inputs[own], want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_need_no_alignment_beyond_that_of_an_element(dtype: str) -> None:
    for shift in range(1, 5):
        inputs = [tensor[shift:] for tensor in data(dtype, 3, 200 + shift, seed=shift)]
        assert same_bits(result("sum", False, inputs), expected("sum", False, inputs))


SPECIAL = [0.0, -0.0, 1.0, -1.5, float("inf"), -float("inf"), float("nan")]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype: str, op: str) -> None:
    """Zeros of both signs, infinities, NaN, the largest, the smallest and subnormal numbers, each with each."""
    info = torch.finfo(getattr(torch, dtype))
    subnormal = info.smallest_normal / 2
    values = torch.tensor([*SPECIAL, info.max, info.min, info.smallest_normal, subnormal, -subnormal, info.eps])
    values = torch.tensor([*values.tolist(), info.max, info.max / 2], dtype=torch.float64).to(getattr(torch, dtype))
    n = len(values)
    first = values.repeat_interleave(n * n)
    second = values.repeat_interleave(n).repeat(n)
    inputs = [first, second, values.repeat(n * n)]
    assert same_bits(result(op, True, inputs), expected(op, True, inputs))
    assert same_bits(result(op, True, inputs[:2]), expected(op, True, inputs[:2]))


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_min_and_max_let_nan_through_from_every_place(dtype: str, op: str) -> None:
    for place in range(4):
        inputs = data(dtype, 4, 70, seed=1)
        inputs[place][::2] = float("nan")
        got = result(op, True, inputs)
        assert got[::2].isnan().all()
        assert not got[1::2].isnan().any()
        assert torch.equal(got[1::2], getattr(torch.stack(inputs), f"a{op}")(0)[1::2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_are_rounded_once(dtype: str) -> None:
    kind = getattr(torch, dtype)
    # One and then many small numbers, each of which is lost if every partial sum is rounded.
    small = torch.finfo(kind).eps / 4
    inputs = [torch.ones(70, dtype=kind), *(torch.full((70,), small, dtype=kind) for _ in range(16))]
    assert torch.equal(result("sum", False, inputs), torch.full((70,), 1 + 16 * small, dtype=kind))
    # What overflows on the way, but not in the end.
    most = torch.finfo(kind).max
    inputs = [torch.full((70,), x, dtype=kind) for x in (most, most, -most)]
    if dtype == "float16":  # whose sums float32 can hold
        assert torch.equal(result("sum", False, inputs), torch.full((70,), most, dtype=kind))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_averages_of_integers_are_exact_and_cut_towards_zero(dtype: str) -> None:
    info = torch.iinfo(getattr(torch, dtype))
    for values in ([7, 8], [1, 1, 0], [5, 5, 6]) + (([-7, 0], [-1, -1, 0]) if info.min < 0 else ()):
        inputs = [torch.full((66,), x, dtype=getattr(torch, dtype)) for x in values]
        assert result("avg", True, inputs).tolist() == [int(sum(values) / len(values))] * 66
    if dtype != "int64":  # their sums need more bits than they have
        inputs = [torch.full((66,), info.max, dtype=getattr(torch, dtype)) for _ in range(5)]
        assert torch.equal(result("avg", True, inputs), inputs[0])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_sums_of_integers_wrap_around(dtype: str) -> None:
    info = torch.iinfo(getattr(torch, dtype))
    one = torch.ones(65, dtype=getattr(torch, dtype))
    assert result("sum", True, [one * info.max, one]).tolist() == [info.min] * 65
    assert result("product", True, [one * info.max, one * 2]).tolist() == [-2 % 256 if dtype == "uint8" else -2] * 65


def test_an_average_divides_by_the_ranks_not_by_the_inputs() -> None:
    # In an algorithm of several rounds the last combine has fewer inputs than there are ranks.
    partial = [torch.full((65,), 6.0), torch.full((65,), 3.0)]
    out = torch.empty(65)
    run("avg", True, partial, [out], ranks=6)
    assert out.tolist() == [1.5] * 65


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(DTypeError, match="complex64"):
        combine_address("complex64", "sum", last=False)
    with pytest.raises(DTypeError, match="xor"):
        combine_address("int32", "xor", last=False)
