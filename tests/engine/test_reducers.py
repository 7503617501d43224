"""Combine kernels against torch, bit for bit: every dtype and op, any number of inputs; all float8 codes."""

from typing import Any

import numba
import numpy as np
import pytest
import torch

from tests.support.each import each
from tests.support.reducers_driver import (
    BITWISE,
    BOOL,
    COMPLEX,
    FLOAT8,
    FLOATS,
    INTEGERS,
    NUMERIC,
    PAIRS,
    data,
    expected,
    result,
    run,
    same_bits,
)
from unisono.base.errors import DTypeError
from unisono.engine.reducers import DTYPES, check_combine, combine_address
from unisono.engine.reducers.custom_kernels import load, store

SHAPES = [
    *((3, count) for count in (0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 1000)),
    *((k, 131) for k in range(1, 9)),
]
"""(inputs, elements): kernels work on up to 64 elements at a time, and one by one on the rest."""

GUARD = 3


@each("dtype, op", PAIRS)
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
@each("dtype", FLOATS)
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *FLOAT8])
def test_short_floats_are_rounded_once(dtype: str) -> None:
    kind = getattr(torch, dtype)
    # One and then many small numbers, each of which is lost if every partial sum is rounded.
    small = torch.finfo(kind).eps / 4
    inputs = [torch.ones(70).to(kind), *(torch.full((70,), small).to(kind) for _ in range(16))]
    assert result("sum", False, inputs).float().tolist() == [1 + 16 * small] * 70
    # What overflows on the way, but not in the end: float32 can hold the sums of all but bfloat16.
    most = torch.finfo(kind).max
    if dtype != "bfloat16":
        inputs = [torch.full((70,), x).to(kind) for x in (most, most, -most)]
        assert result("sum", False, inputs).float().tolist() == [most] * 70


@each("dtype", INTEGERS)
def test_integer_averages_truncate_towards_zero(dtype: str) -> None:
    info = torch.iinfo(getattr(torch, dtype))
    for values in ([7, 8], [1, 1, 0], [5, 5, 6]) + (([-7, 0], [-1, -1, 0]) if info.min < 0 else ()):
        inputs = [torch.full((66,), x, dtype=getattr(torch, dtype)) for x in values]
        assert result("avg", True, inputs).tolist() == [int(sum(values) / len(values))] * 66
    if info.bits < 64:  # their sums need more bits than they have
        for extreme in (info.max, info.min):
            inputs = [torch.full((66,), extreme, dtype=getattr(torch, dtype)) for _ in range(5)]
            assert torch.equal(result("avg", True, inputs), inputs[0])


def test_any_byte_but_zero_is_true() -> None:
    bytes_ = [torch.tensor([0, 1, 2, 255, 0] * 17, dtype=torch.uint8), torch.tensor([0, 2, 1, 2, 4] * 17).byte()]
    for op, want in (("sum", [0, 1, 1, 1, 1]), ("band", [0, 1, 1, 1, 0]), ("bxor", [0, 0, 0, 0, 1])):
        got = result(op, True, [tensor.view(torch.bool) for tensor in bytes_])
        assert got.view(torch.uint8).tolist() == want * 17


def test_average_divides_by_the_number_of_ranks() -> None:
    # In an algorithm of several rounds the last combine has fewer inputs than there are ranks.
    for dtype in (torch.float32, torch.bfloat16, torch.int16, torch.uint64, torch.complex64):
        partial = [torch.full((65,), 6.0).to(dtype), torch.full((65,), 6.0).to(dtype)]
        out = torch.empty(65, dtype=dtype)
        run("avg", True, partial, [out], ranks=4)
        assert out.tolist() == [3] * 65


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        *((dtype, op) for dtype in FLOATS + COMPLEX for op in BITWISE),
        *((dtype, op) for dtype in COMPLEX for op in ("min", "max")),
        *((dtype, "avg") for dtype in BOOL),
    ],
)
def test_unsupported_pairs_are_refused(dtype: str, op: str) -> None:
    able = [other for other, its_op in PAIRS if its_op == op]
    with pytest.raises(DTypeError, match=f"{op}: got {dtype} tensors, expected one of ") as caught:
        check_combine(dtype, op)
    named = str(caught.value).partition(", expected one of ")[2].partition(".")[0].split(", ")
    assert sorted(named) == sorted(able)
    with pytest.raises(DTypeError, match=f"{op}: got {dtype} tensors"):
        combine_address(dtype, op, last=True)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(DTypeError, match="quint8"):
        check_combine("quint8", "sum")
    with pytest.raises(DTypeError, match=r"'xor'.*bxor"):
        combine_address("int32", "xor", last=False)


def codes(dtype: str) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype))


def dense() -> torch.Tensor:
    """Float32 numbers with all signs, exponents and leading bits of a mantissa, and with all ways to be rounded."""
    high = torch.arange(1 << 16, dtype=torch.int64).repeat_interleave(8) << 16
    low = torch.tensor([0, 1, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF]).repeat(1 << 16)
    bits = high | low
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)


def converters(dtype: str) -> tuple[Any, Any]:
    index = DTYPES.index(dtype)

    @numba.njit  # type: ignore[untyped-decorator]
    def decode(source: int, out: Any) -> None:
        for k in range(len(out)):
            out[k] = load(index, source, k)

    @numba.njit  # type: ignore[untyped-decorator]
    def encode(numbers: Any, target: int) -> None:
        for k in range(len(numbers)):
            store(index, target, k, numbers[k])

    return decode, encode


@pytest.mark.parametrize("dtype", FLOAT8)
def test_numbers_are_converted_as_by_torch(dtype: str) -> None:
    decode, encode = converters(dtype)
    source, out = codes(dtype), np.empty(256, np.float32)
    decode(source.data_ptr(), out)
    assert same_bits(torch.from_numpy(out), source.float())

    numbers = dense()
    got = torch.empty(len(numbers), dtype=torch.uint8)
    encode(numbers.numpy(), got.data_ptr())
    want = numbers.to(getattr(torch, dtype)).view(torch.uint8)
    wrong = (got != want).nonzero().flatten()[:5]
    assert not len(wrong), (numbers[wrong], got[wrong], want[wrong])


@pytest.mark.parametrize("dtype", FLOAT8)
def test_vectors_are_converted_as_torch_does(dtype: str) -> None:
    """Products and sums of all pairs of codes, which lie between codes, among subnormal numbers and beyond the last."""
    first, second = codes(dtype).view(torch.uint8).repeat_interleave(256), codes(dtype).view(torch.uint8).repeat(256)
    pair = [first.view(getattr(torch, dtype)), second.view(getattr(torch, dtype))]
    x, y = (tensor.float() for tensor in pair)
    assert same_bits(result("sum", True, pair), (x + y).to(pair[0].dtype))
    assert same_bits(result("product", True, pair), (x * y).to(pair[0].dtype))
    assert same_bits(result("avg", True, [*pair, pair[0]]), ((x + y + x) / 3).to(pair[0].dtype))
    assert same_bits(result("max", True, pair), torch.maximum(x, y).to(pair[0].dtype).where(x != y, pair[1]))
