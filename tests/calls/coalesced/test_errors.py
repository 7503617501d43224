"""Lists that ranks disagree about, or that no call can take: errors before anything moves, and a group that goes on."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unisono
from unisono import ArgumentError, MismatchError
from unisono.base.errors import DTypeError
from unisono.calls.coalesced import (
    all_gather_coalesced,
    all_reduce_coalesced,
    broadcast_coalesced,
    reduce_scatter_coalesced,
)
from unisono.engine.tensors import first_overlap


def ones(*counts: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.ones(count, dtype=dtype) for count in counts]


def nested(count: int) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor(ones(count))


DIFFERENT: dict[str, list[torch.Tensor]] = {
    "sizes whose sum is the same": ones(2, 4, 3),
    "one more": ones(2, 3, 4, 1),
    "one less": ones(2, 3),
    "one more without elements": ones(2, 3, 4, 0),
    "nothing": [],
    "dtypes": ones(2, 3, 4, dtype=torch.float64),
    "one dtype": [*ones(2, 3), *ones(4, dtype=torch.int32)],
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.ranks(3)
def test_other_tensors_on_one_rank(what: str) -> None:
    tensors = DIFFERENT[what] if unisono.get_rank() == 2 else ones(2, 3, 4)
    before = [tensor.clone() for tensor in tensors]
    with pytest.raises(MismatchError, match="rank 2 differs") as caught:
        all_reduce_coalesced(tensors)
    assert "tensors" in str(caught.value.calls[0])
    assert all(map(torch.equal, tensors, before))
    again = ones(7, 8)
    all_reduce_coalesced(again)
    assert all((tensor == 3).all() for tensor in again)


@pytest.mark.ranks(2)
def test_sizes_far_down_a_long_list() -> None:
    counts = [5] * 100
    counts[70 + unisono.get_rank()] = 6
    with pytest.raises(MismatchError):
        broadcast_coalesced(ones(*counts), 0)


@pytest.mark.ranks(2)
def test_the_plain_call_is_another_one() -> None:
    call = [lambda: all_reduce_coalesced(ones(10)), lambda: unisono.all_reduce(torch.ones(10))]
    with pytest.raises(MismatchError):
        call[unisono.get_rank()]()


def input_in_output() -> None:
    memory = torch.ones(10)
    all_gather_coalesced([memory[:8]], [memory[6:]])


def the_block_of_another() -> None:
    whole = torch.ones(8)
    reduce_scatter_coalesced([whole[4:], torch.ones(1)], [whole, torch.ones(2)])


def in_part() -> list[torch.Tensor]:
    whole = torch.ones(10)
    return [whole[:6], torch.ones(3), whole[5:]]


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a tensor": (lambda: all_reduce_coalesced(torch.ones(3)), DTypeError, "tensors: got Tensor, expected a list"),
    "a number": (lambda: all_reduce_coalesced(7), DTypeError, "tensors: got int, expected a list"),
    "an array": (lambda: all_reduce_coalesced(np.ones(3)), DTypeError, "tensors: got ndarray, expected a list"),
    "a list of numbers": (lambda: all_reduce_coalesced([1.0]), DTypeError, r"tensors\[0\]"),
    "sparse": (lambda: all_reduce_coalesced([*ones(2), torch.eye(3).to_sparse()]), DTypeError, r"tensors\[1\]"),
    "nested": (lambda: all_reduce_coalesced([*ones(2), nested(2)]), DTypeError, r"tensors\[1\]: got a nested tensor"),
    "expanded": (lambda: all_reduce_coalesced([torch.ones(1).expand(4)]), ArgumentError, r"tensors\[0\]"),
    "in part the same": (
        lambda: all_reduce_coalesced(in_part()),
        ArgumentError,
        r"tensors\[0\] and tensors\[2\] share",
    ),
    "twice": (lambda: all_reduce_coalesced(ones(4) * 2), ArgumentError, r"tensors\[0\] and tensors\[1\] share"),
    "op": (lambda: all_reduce_coalesced(ones(4), "plus"), ArgumentError, "op"),
    "op of this dtype": (lambda: all_reduce_coalesced([torch.ones(4, dtype=torch.cfloat)], "max"), DTypeError, "max"),
    "root": (lambda: broadcast_coalesced(ones(4), 9), ArgumentError, "src: got 9"),
    "fewer outputs": (
        lambda: all_gather_coalesced(ones(8), ones(4, 4)),
        ArgumentError,
        "outputs: got 1 tensors, expected 2",
    ),
    "no outputs": (lambda: all_gather_coalesced([], ones(4, 8)), ArgumentError, "outputs: got 0 tensors"),
    "small output": (lambda: all_gather_coalesced(ones(4), ones(4)), ArgumentError, r"outputs\[0\]"),
    "input in part an output": (input_in_output, ArgumentError, r"inputs\[0\] and outputs\[0\] share"),
    "another's block": (the_block_of_another, ArgumentError, r"outputs\[0\] and inputs\[0\] share"),
    "factors of integers": (
        lambda: all_reduce_coalesced([torch.ones(4, dtype=torch.int64)], unisono.premul_sum(2.0)),
        DTypeError,
        "premul_sum: got int64",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.ranks(2)
def test_what_no_call_takes(what: str) -> None:
    """One rank's mistake is known to the others, too."""
    all_reduce_coalesced(ones(2, 3))
    all_gather_coalesced(ones(8), ones(4))  # lists of these lengths are known
    if unisono.get_rank() == 0:
        call, error, message = REFUSED[what]
        with pytest.raises(error, match=message):
            call()
    else:
        with pytest.raises(MismatchError, match="refused there"):
            broadcast_coalesced(ones(5), 0)
    again = ones(7)
    all_reduce_coalesced(again)
    assert (again[0] == 2).all()


@pytest.mark.ranks(2)
def test_columns_of_one_tensor_are_apart() -> None:
    table = torch.arange(12.0).view(4, 3)
    all_reduce_coalesced(list(table.unbind(1)))
    assert torch.equal(table, 2 * torch.arange(12.0).view(4, 3))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6), st.booleans()), max_size=8))
def test_first_overlap_against_the_definition(spans: list[tuple[int, int, bool]]) -> None:
    def meet(first: int, second: int) -> bool:
        (a, n, write), (b, m, other) = spans[first], spans[second]
        return (write or other) and max(a, b) < min(a + n, b + m)

    found = first_overlap(*([span[k] for span in spans] for k in range(3)))
    pairs = {(i, j) for i in range(len(spans)) for j in range(len(spans)) if i != j and meet(i, j)}
    assert (found in pairs) if pairs else (found is None)
