"""The table of known calls: which tensors find the plan of an earlier call, and that others do not."""

from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import unisono
from tests.calls.collectives.test_exact import wait_for

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
COUNT = 6


def ones(*shape: int, **how: Any) -> torch.Tensor:
    return torch.ones(shape or (COUNT,), **how)


OTHERS: dict[str, Callable[[], Any]] = {
    "another shape": lambda: ones(2, 3),
    "a part": lambda: ones(8)[1:7],
    "transposed": lambda: ones(3, 2).t(),
    "expanded": lambda: ones(1).expand(COUNT),
    "a parameter": lambda: torch.nn.Parameter(ones()),
    "of complex numbers": lambda: ones(dtype=torch.complex64).conj(),
    "one imaginary number": lambda: ones(1, dtype=torch.complex64).conj().imag,  # DLPack does not tell its sign
    "float64": lambda: ones(dtype=torch.float64),
    "uint3": lambda: torch.empty(COUNT, dtype=torch.uint3),  # type: ignore[attr-defined]  # torch's stubs omit it
    "no memory": lambda: ones(device="meta"),
    "empty": lambda: torch.ones(0),
    "sparse": lambda: ones().to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([ones(3), ones(3)]),
    "quantized": lambda: torch.quantize_per_tensor(ones(), 0.1, 0, torch.quint8),
    "fake": lambda: FakeTensorMode().from_tensor(ones()),
    "two in one": lambda: TwoTensor(ones(), ones()),
    "a copy not yet made": lambda: torch._lazy_clone(ones()),
    "shared": lambda: unisono.init().empty(COUNT).fill_(1.0),
    "none": lambda: None,
    "a list": lambda: [1.0] * COUNT,
}
PLAIN = (torch.float32, torch.uint8, torch.int8)


def outcome(make: Callable[[], Any], known: bool, **how: Any) -> tuple[str, Any]:
    """What the sum of such tensors is, or which error says that there is none. known: calls on plain tensors are."""
    unisono.init().forget_plans()
    for dtype, count in product(PLAIN * 2 * known, (COUNT, 1)):
        unisono.all_reduce(ones(count, dtype=dtype))
    tensor = make()
    try:
        for _ in range(2):
            wait_for(unisono.all_reduce(tensor, **how))
    except Exception as error:  # noqa: BLE001  any kind
        return type(error).__name__, str(error)
    return "", tensor.tolist()


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.ranks(2)
def test_known_calls_change_no_outcome(other: str, async_op: bool) -> None:
    make = OTHERS[other]
    first, second = (outcome(make, known, async_op=async_op) for known in (False, True))
    assert first == second


@pytest.mark.ranks(2)
def test_lazy_copy_leaves_its_original_alone() -> None:
    for _ in range(2):
        unisono.all_reduce(ones())
    original = ones()
    copy = torch._lazy_clone(original)
    unisono.all_reduce(copy)
    assert (original.tolist(), copy.tolist()) == ([1.0] * COUNT, [2.0] * COUNT)


def only_known() -> Any:
    """In this block, all_reduce raises if no fast path finds its plan."""
    module = import_module("unisono.calls.collectives.all_reduce")
    return patch.object(module, "Call", side_effect=AssertionError("not known"))


@pytest.mark.ranks(2)
def test_calls_of_many_sizes_are_all_known() -> None:
    """With the plans of their dtypes: the larger one of 1 and -2, or 254."""
    unisono.init().forget_plans()
    for block in (nullcontext(), only_known()):
        with block:
            for count, dtype in product(range(1, 60), PLAIN):
                tensor = torch.full((count,), (1, -2)[unisono.get_rank()]).to(dtype)
                unisono.all_reduce(tensor, "max")
                assert tensor.tolist() == [254 if dtype is torch.uint8 else 1] * count


@pytest.mark.ranks(2)
def test_torch_without_dlpack_keeps_no_call() -> None:
    unisono.init().forget_plans()
    with patch.object(import_module("unisono.calls.dispatch.known"), "EXPORTER", 0):
        for _ in range(3):
            tensor = ones()
            unisono.all_reduce(tensor)
            assert tensor.tolist() == [2.0] * COUNT
        with only_known(), pytest.raises(AssertionError, match="not known"):
            unisono.all_reduce(ones())


@pytest.mark.ranks(2)
def test_own_block_of_the_output_is_known() -> None:
    group = unisono.init()
    for _ in range(3):
        whole = torch.full((2 * COUNT,), -1.0)
        own = whole[group.rank * COUNT : (group.rank + 1) * COUNT].fill_(group.rank)
        unisono.all_gather_single(whole, own)
        assert whole.tolist() == [0.0] * COUNT + [1.0] * COUNT
    wrong = whole[(1 - group.rank) * COUNT : (2 - group.rank) * COUNT]
    with pytest.raises(unisono.ArgumentError, match="memory"):
        unisono.all_gather_single(whole, wrong)


@pytest.mark.ranks(2)
def test_known_call_has_its_own_time_out() -> None:
    group = unisono.new_group(timeout_s=1000)  # longer than this test may take
    for _ in range(3):
        unisono.all_reduce(ones(), group=group)
    with pytest.raises(unisono.ArgumentError):
        unisono.all_reduce(ones(), group=group, timeout_s=-1.0)
    if group.rank == 0:
        with pytest.raises(unisono.WaitTimeout):
            unisono.all_reduce(ones(), group=group, timeout_s=0.1)
    unisono.barrier()
