"""docs/calls.md: that it says what the code does, and that what fills it can tell right from wrong."""

from collections.abc import Callable

import pytest
import torch
from benchmarks.runs import OURS, read
from benchmarks.supported_calls import attempts
from benchmarks.supported_calls.__main__ import dtype_table, try_torch_like
from benchmarks.supported_calls.attempts import ALL_DTYPES, COMBINING, MOVING, OPS, SITUATIONS, TRIES, Try

import unisono
from unisono.calls.ops import check_op_dtype, premul_sum, resolve


def takes(one: Try) -> bool:
    """What the code says: does this call take this dtype with this op?"""
    if one.call in MOVING:
        return True
    if one.op == "avg" and one.call in ("scan", "exscan"):
        return False
    made = {"custom": lambda: unisono.make_op(OPS["custom"]), "premul_sum": lambda: premul_sum(0.5)}
    try:
        check_op_dtype(made.get(one.op, lambda: resolve(one.op))(), one.dtype)
    except unisono.DTypeError:
        return False
    return True


def test_document_agrees_with_the_code() -> None:
    says = {one: "right" if takes(one) else "raises" for one in TRIES if one.dtype}
    assert dtype_table(OURS, says) == read("calls").table(OURS)


def test_a_few_tries_of_ours() -> None:
    tries = [
        *(Try(call, dtype, "max") for call in COMBINING for dtype in ("int8", "float8_e5m2")),
        Try("exscan", "uint16", "product"),
        Try("all_reduce", "complex64", "max"),
        *(Try(call, "int4") for call in MOVING),
        *(Try(situation) for situation in SITUATIONS),
    ]
    found = dict(zip(tries, try_torch_like(OURS, tries), strict=True))
    disagreeing = list(SITUATIONS)[-5:]
    raising = {Try("all_reduce", "complex64", "max"), *map(Try, disagreeing)}
    assert found == {one: "raises" if one in raising else "right" for one in tries}


class Fake(attempts.Library):
    """One that does with its tensors what it is told to, and knows no other rank."""

    rank = 0

    def __init__(self, action: Callable[[torch.Tensor], None]) -> None:
        self._action = action

    def _perform(self, call: str, x: torch.Tensor, y: torch.Tensor | None, op: str, root: int) -> None:  # noqa: ARG002
        self._action(x if y is None else y)


def nothing(tensor: torch.Tensor) -> None:
    pass


def fail(error: Exception) -> Callable[[torch.Tensor], None]:
    def action(tensor: torch.Tensor) -> None:
        raise error

    return action


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_a_library_that_does_nothing_is_found_out(dtype: str) -> None:
    wrong = [Try(call, dtype) for call in ("scatter", "gather", "all_gather", "all_to_all")]
    if dtype not in ("complex32", "float8_e8m0fnu", "float4_e2m1fn_x2", "int4"):
        wrong += [Try(call, dtype, "sum") for call in ("all_reduce", "reduce", "reduce_scatter")]
    for one in wrong:
        assert attempts.outcome(one, Fake(nothing)) == "wrong", one


def test_errors_of_the_library_are_told_apart() -> None:
    one = Try("all_reduce", "float32", "sum")
    assert attempts.outcome(one, Fake(fail(RuntimeError("no such dtype")))) == "raises"
    assert attempts.outcome(one, Fake(fail(attempts.NoResult("no op")))) == "no op"
    assert attempts.outcome(Try("all_reduce", "float32", "band"), Fake(nothing)) == "undefined"
    with pytest.raises(AttributeError):  # a dtype that torch does not have is a mistake of whoever tries it
        attempts.outcome(Try("all_reduce", "float31", "sum"), Fake(nothing))
