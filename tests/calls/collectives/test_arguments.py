"""Wrong arguments raise on the rank that gave them, before anything moves; the group goes on."""

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import unisono
from tests.support.matrix import Case
from tests.support.matrix_driver import algorithms, check
from unisono import AlgorithmError, ArgumentError
from unisono.base.errors import DTypeError
from unisono.schedule import send


def f(count: int = 4) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32)


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor([f(14), f(17)])  # a size that no plan is kept for


def in_grad(call: Callable[[torch.Tensor], Any]) -> None:
    torch.func.grad(lambda tensor: call(tensor * 2) or tensor.sum())(f())


def freed() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


WRONG: list[tuple[str, type[Exception], str]] = [
    ("all_reduce(np.ones(3))", DTypeError, r"got ndarray, .* Pass torch.from_numpy\(array\)"),
    ("all_reduce([1.0])", DTypeError, "tensor: got list, expected a torch.Tensor"),
    ('all_reduce(f(), "xor")', ArgumentError, "op: unknown op 'xor'"),
    ("all_reduce(f(), 3)", DTypeError, "op: 3"),
    ('all_reduce(f().to(torch.cfloat), "max")', DTypeError, "complex64"),
    ('scan(f(), "avg")', ArgumentError, "got avg, which scan does not have"),
    ("all_reduce(f().long(), premul_sum(2.0))", DTypeError, "premul_sum: got int64"),
    ('reduce(f().bool(), 0, "avg")', DTypeError, "bool"),
    ("all_reduce(f(1).expand(4))", ArgumentError, "tensor: .*share memory"),
    ("reduce(f(1).expand(4), 0)", ArgumentError, "tensor: .*share memory"),
    ("broadcast(f(1).expand(4), 1)", ArgumentError, "tensor: .*share memory"),
    ("all_gather_single(f(1).expand(8), f())", ArgumentError, "output"),
    ("all_gather([f(), f(1).expand(4)], f())", ArgumentError, r"tensor_list\[1\]"),
    ("all_reduce(f().to_sparse())", DTypeError, "to_dense"),
    ("all_reduce(f().to('meta'))", ArgumentError, "got a meta tensor.*to_empty"),
    ("all_reduce(nested())", DTypeError, "tensor: got a nested .*unbind"),
    ("all_gather([nested(), nested()], nested())", DTypeError, "tensor: got a nested .*unbind"),
    ("in_grad(all_reduce)", DTypeError, "tensor: .*without memory of its own"),
    ("all_gather([f(), f().to('meta')], f())", ArgumentError, r"tensor_list\[1\].*meta"),
    ("all_reduce(torch.quantize_per_tensor(f(), 1.0, 0, torch.quint8))", DTypeError, "sum: got quint8"),
    ("broadcast(f().to(torch.cfloat).conj(), 1)", ArgumentError, "conjugate"),
    ("broadcast(f(), 2)", ArgumentError, "src: got 2, .*0 to 1"),
    ("reduce(f(), -1)", ArgumentError, "dst: got -1"),
    ('broadcast(f(), "0")', DTypeError, "src: got str, expected a rank"),
    ("gather(f(), None, True)", DTypeError, "dst: .*bool"),
    ("all_gather([f()], f())", ArgumentError, "tensor_list: got 1 tensors, expected 2"),
    ("reduce_scatter(f(), [f(), f(), f()])", ArgumentError, "input_list: .*got 3"),
    ("all_to_all(3, [f(), f()])", DTypeError, "output_tensor_list: .*int"),
    ("all_to_all([f(), f()], None)", DTypeError, "input_tensor_list"),
    ("reduce_scatter(f(), f(8))", DTypeError, "input_list: .*reduce_scatter_single"),
    ("all_to_all([], [])", DTypeError, "input_tensor_list"),
    ("all_gather([f(), None], f())", DTypeError, r"tensor_list\[1\]: .*NoneType"),
    ("all_gather((f() for _ in range(2)), f())", DTypeError, "tensor_list"),
    ("all_gather([f(5), f()], f())", ArgumentError, r"tensor_list\[0\]: got float32\[5\]"),
    ("reduce_scatter(f(), [f(), f().double()])", ArgumentError, r"input_list\[1\]: got float64\[4\]"),
    ("all_gather(None, torch.zeros([1] * 9))", ArgumentError, "9 dimensions"),
    ("scatter(f(), None, 0)", ArgumentError, "scatter_list: got None on rank 0"),
    ("scatter(f(), [f(), f()], 1)", ArgumentError, "on rank 1 .* only"),
    ("gather(f(), [f(), f()], 1)", ArgumentError, "on rank 1 .* only"),
    ("all_gather_single(f(7), f())", ArgumentError, "output: .*8 elements"),
    ("all_gather_single(f(8).double(), f())", ArgumentError, "output: got float64.*the dtype"),
    ("reduce_scatter_single(f(), f(9))", ArgumentError, "input: .*8 elements"),
    ("all_to_all_single(f(5), f(5))", ArgumentError, "multiple of 2"),
    ("all_to_all_single(f(6), f(4))", ArgumentError, "output: got"),
    ("reduce_scatter_single(w[3:7], w[:8])", ArgumentError, "share memory"),
    ("all_gather_single(w[:8], w[3:7])", ArgumentError, "share memory"),
    ("all_to_all_single(w, w)", ArgumentError, "share memory"),
    ("all_to_all([w[:4], w[4:8]], [w[:4], w[4:8]])", ArgumentError, "share memory"),
    ("gather(w[4:8], [w[:4], w[4:8]], 0)", ArgumentError, "share memory"),
    ("scatter(w[4:8], [w[:4], w[4:8]], 0)", ArgumentError, "share memory"),
    ('all_reduce(f(), algorithm="rnig")', ArgumentError, "'ring'"),
    ('all_reduce(f(), algorithm="broadcast.linear")', ArgumentError, "for broadcast, expected one for all_reduce"),
    ("all_reduce(f(), algorithm=3)", ArgumentError, "algorithm: got 3"),
    ("all_reduce(f(), algorithm=wrong)", AlgorithmError, "counted twice"),
    ("scatter(f(), torch.zeros(2, 4), 0)", DTypeError, "scatter_list: .*got Tensor"),
    ("gather(f(), torch.zeros(2, 4), 0)", DTypeError, "gather_list: .*got Tensor"),
    ("all_to_all_single(f(), f(), [None, 4], [2, 2])", DTypeError, "expected 2 integers"),
    ("all_to_all_single(f(), f(), 2, [2, 2])", DTypeError, "got 2, expected 2 integers"),
    ("all_to_all_single(f(), f(), [1.5, 2.5], [2, 2])", DTypeError, "expected 2 integers"),
    ('broadcast_module("model")', DTypeError, "model: .*got str"),
    ("average_gradients(3)", DTypeError, "model: .*got int"),
    ('all_reduce(f(), algorithm=["x"])', TypeError, "list"),
    ("all_reduce(freed())", DTypeError, "tensor: .*without memory"),
    ("all_reduce_coalesced([f(), freed()])", DTypeError, r"tensors\[1\]: .*without memory"),
    ("broadcast(torch._efficientzerotensor(4), 0)", DTypeError, "tensor: .*without memory"),
    ("all_gather([torch.zeros(4, 2)[:, 0]] * 2, f())", ArgumentError, "share memory"),
    ("all_to_all_single(w[:8], w[4:])", ArgumentError, "share memory"),
    ("broadcast(f().to('meta'), 0)", ArgumentError, "meta"),
    ("all_gather([freed(), f()], f())", DTypeError, "without memory"),
    ("all_gather([f(), f()], freed())", DTypeError, "without memory"),
    ("reduce_scatter(f(), [freed(), f()])", DTypeError, "without memory"),
    ("all_to_all([freed(), f()], [f(), f()])", DTypeError, "without memory"),
    ("all_to_all_single(f(3), f(2), [1, 1], [1, 1])", ArgumentError, "output_split_sizes: .* with the sum"),
    ("broadcast_module(torch.nn.LazyLinear(3))", ArgumentError, "weight: has no shape yet"),
    ('broadcast_module({"x": np.ones(2)})', DTypeError, "x: .*torch.from_numpy"),
    ('broadcast_module({"n": 3})', DTypeError, "n: got int, expected"),
    ("broadcast_module([1])", DTypeError, "model: got list, expected"),
    # of lists of tensors
    ("all_reduce_coalesced(f())", DTypeError, "tensors: got Tensor"),
    ("all_reduce_coalesced(np.ones(3))", DTypeError, "tensors: got ndarray, expected a list"),
    ("all_reduce_coalesced([1.0])", DTypeError, r"tensors\[0\]"),
    ("all_reduce_coalesced([f(), f().to_sparse()])", DTypeError, r"tensors\[1\]"),
    ("all_reduce_coalesced([f(), nested()])", DTypeError, r"tensors\[1\]: got a nested"),
    ("all_reduce_coalesced([f(1).expand(4)])", ArgumentError, r"tensors\[0\]"),
    ("all_reduce_coalesced([w[:6], f(3), w[5:]])", ArgumentError, r"tensors\[0\] and tensors\[2\] share"),
    ("all_reduce_coalesced([f()] * 2)", ArgumentError, r"tensors\[0\] and tensors\[1\] share"),
    ('all_reduce_coalesced([f()], "plus")', ArgumentError, "op"),
    ('all_reduce_coalesced([f().to(torch.cfloat)], "max")', DTypeError, "max"),
    ("broadcast_coalesced([torch.quantize_per_tensor(f(), 1.0, 0, torch.quint8)], 0)", DTypeError, "int_repr"),
    ("broadcast_coalesced([f()], 9)", ArgumentError, "src: got 9"),
    ("all_gather_coalesced([f(8)], [f(), f()])", ArgumentError, "outputs: got 1 tensors, expected 2"),
    ("all_gather_coalesced([], [f(), f(8)])", ArgumentError, "outputs: got 0 tensors"),
    ("all_gather_coalesced([f()], [f()])", ArgumentError, r"outputs\[0\]"),
    ("all_gather_coalesced([w[:8]], [w[3:7]])", ArgumentError, r"inputs\[0\] and outputs\[0\] share"),
    ("all_gather_coalesced([f(20), w[8:10]], [w[:10], w[2:3]])", ArgumentError, r"inputs\[0\] and outputs\[1\] share"),
    ("reduce_scatter_coalesced([w[4:8], f(1)], [w[:8], f(2)])", ArgumentError, r"outputs\[0\] and inputs\[0\] share"),
    ("all_reduce_coalesced([f().long()], premul_sum(2.0))", DTypeError, "premul_sum: got int64"),
    # of objects
    ("all_gather_object([None], 1)", ArgumentError, "got 1 items, expected 2"),
    ("all_gather_object([None, None, None], 1)", ArgumentError, "got 3"),
    ("all_gather_object((None, None), 1)", DTypeError, "got tuple, expected a list"),
    ("gather_object(1, None, 0)", DTypeError, "got NoneType"),
    ("gather_object(1, [0, 0], 1)", ArgumentError, "Pass None here"),
    ("broadcast_object_list(None)", DTypeError, "object_list: got NoneType"),
    ("scatter_object_list([], [0, 0])", ArgumentError, "got an empty list"),
    ("scatter_object_list([0], None, 0)", DTypeError, "got NoneType"),
    ("scatter_object_list([0], [1], 0)", ArgumentError, "got 1"),
    ("gather_object(1, [None, None], dst=5)", ArgumentError, "dst: got 5, .* of this group, 0 to 1"),
    ("broadcast_object_list([1], -1)", ArgumentError, "src: got -1"),
    ("scatter_object_list([1], [0, 0], True)", DTypeError, "src: .*bool"),
    # of groups
    ("new_group([0, 2])", ArgumentError, "rank 2 is not in group .*size 2"),
    ("new_group([-1])", ArgumentError, "rank -1 is not in group"),
    ("new_group([0, 0])", ArgumentError, "each once"),
    ("new_group([])", ArgumentError, "at least one"),
    ("new_group([True])", DTypeError, "bool"),
    ('new_group(["0"])', DTypeError, "str"),
    ("new_group(1)", DTypeError, "int"),
    ("new_group(timeout_s=0)", ArgumentError, "timeout_s"),
    ('new_group(name="\\ud800")', ArgumentError, r"name: got '\\ud800', which has a surrogate"),
    ("split(1.5)", DTypeError, "color"),
    ("split(1 << 63)", ArgumentError, "color: .*64 bits"),
    ("split(1, None)", DTypeError, "key"),
    ("split(0, 1 << 64)", ArgumentError, "key"),
    ("split(0, name=5)", DTypeError, "name: got int, expected a str"),
]  # fmt: skip
"""What two ranks call on rank 0, the error, and what its message names."""


def wrong(r, p):
    for _ in range(2):
        yield send(r, (r + 1) % p, 0, op=1)


HELPERS: dict[str, Any] = {
    **{name: getattr(unisono, name) for name in unisono.__all__},
    "f": f, "freed": freed, "in_grad": in_grad, "nested": nested, "np": np, "torch": torch, "wrong": wrong,
}  # fmt: skip
"""What a row may name; besides w, 12 numbers."""


def right() -> None:
    """Calls of the sizes of many wrong ones, whose plans are known from then on."""
    for _ in range(2):
        unisono.all_to_all_single(f(8), f(8))
        unisono.all_gather_single(f(8), f())
        unisono.reduce_scatter_single(f(), f(8))
        unisono.all_reduce(f())
        unisono.broadcast(f(), 0)
        unisono.all_gather([f(), f()], f())
        unisono.all_to_all([f(), f()], [f(), f()])
        unisono.reduce_scatter(f(), [f(), f()])
        unisono.all_reduce_coalesced([f(), f()])
        unisono.all_gather_coalesced([f(8)], [f()])


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("call", "kind", "words"), WRONG, ids=[row[0] for row in WRONG])
@pytest.mark.ranks(2)
def test_wrong_arguments_raise_on_their_rank(call: str, kind: type[Exception], words: str, known: bool) -> None:
    """The other rank, which would wait for it, raises in the same call, and says why; the next call goes well."""
    unisono.init().forget_plans()
    if known:
        right()
    told = [""]
    if unisono.get_rank() == 0:
        with pytest.raises(kind, match=words) as caught:
            eval(call, {**HELPERS, "w": f(12)})  # noqa: S307  our own rows
        told = [" ".join(str(caught.value).split())[:60]]
    else:
        with pytest.raises(unisono.MismatchError, match="refused there") as heard:
            unisono.barrier(timeout_s=30)
    unisono.broadcast_object_list(told, 0)
    assert unisono.get_rank() == 0 or told[0] in str(heard.value)


DIFFERENT: list[tuple[str, str, tuple[str, ...]]] = [
    ("all_reduce_coalesced(ones(2, 4, 3))", "all_reduce_coalesced(ones(2, 3, 4))", ("rank 2 differs", "tensors")),
    ("all_reduce_coalesced(ones(2, 3, 4, 1))", "all_reduce_coalesced(ones(2, 3, 4))", ("rank 2 differs", "tensors")),
    ("all_reduce_coalesced(ones(2, 3))", "all_reduce_coalesced(ones(2, 3, 4))", ("rank 2 differs", "tensors")),
    ("all_reduce_coalesced(ones(2, 3, 4, 0))", "all_reduce_coalesced(ones(2, 3, 4))", ("rank 2 differs", "tensors")),
    ("all_reduce_coalesced([])", "all_reduce_coalesced(ones(2, 3, 4))", ("rank 2 differs", "tensors")),
    ("all_reduce_coalesced(ones(2, 3, dtype=torch.double))", "all_reduce_coalesced(ones(2, 3))", ("rank 2 differs",)),
    ("all_reduce_coalesced(ones(2) + ones(3, dtype=torch.int))", "all_reduce_coalesced(ones(2, 3))", ("rank 2",)),
    ("broadcast_coalesced(ones(*[5] * 70, 6, 5), 0)", "broadcast_coalesced(ones(*[5] * 71, 6), 0)", ("rank 2",)),
    ("all_reduce(ones(10)[0])", "all_reduce_coalesced(ones(10))", ("rank 2 differs",)),
    ("all_reduce(ones(5)[0])", "all_reduce(ones(4)[0])", ("rank 2 differs", "float32[5]", "float32[4]")),
    ("broadcast_object_list([1], 2)", "broadcast_object_list([1], 0)", ("src=2",)),
    ("all_gather(ones(3, 3, 3), f(3))", "all_gather(None, f(3))", ("of unknown sizes",)),
    ("all_gather(None, f(3).int())", "all_gather(None, f(3).long())", ("int32", "int64")),
    ("all_gather_single(f(15), f(5))", "all_gather_single(f(9), f(3))", ("rank 2  all_gather(float32[5])",)),
    ("all_to_all(ones(3, 3, 3), ones(3, 3, 5))", "all_to_all(ones(3, 3, 3), ones(3, 3, 3))", ("5 elements",)),
    ("gather(f(5), None, 0)", "gather(f(3), None if me else ones(3, 3, 3), 0)",
     ("rank 2 differs", "gives rank 0 5 elements", "expects 3 elements from rank 2")),
    ("scatter(f(5), None, 0)", "scatter(f(3), None if me else ones(3, 3, 3), 0)",
     ("gives rank 2 3 elements", "expects 5 elements from rank 0")),
]  # fmt: skip
"""Calls of rank 2, and of ranks 0 and 1; words of the error."""


@pytest.mark.parametrize(("odd", "usual", "words"), DIFFERENT, ids=[row[0] for row in DIFFERENT])
@pytest.mark.ranks(3, hosts="2+1")
def test_calls_that_differ_change_nothing(odd: str, usual: str, words: tuple[str, ...]) -> None:
    me, made = unisono.get_rank(), list[torch.Tensor]()

    def ones(*counts: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        new = [torch.ones(count, dtype=dtype) for count in counts]
        made.extend(new)
        return new

    with pytest.raises(unisono.MismatchError) as caught:
        eval(odd if me == 2 else usual, {**HELPERS, "me": me, "ones": ones})  # noqa: S307  our own rows
    said = str(caught.value).replace("\n", " ")
    assert all(word in said for word in words), said
    assert all(tensor.eq(1).all() for tensor in made)
    with pytest.raises(DTypeError if me == 2 else unisono.MismatchError, match="got float"):
        unisono.all_reduce(1.0 if me == 2 else f())
    total = torch.ones(7)
    unisono.all_reduce(total)
    assert total.tolist() == [3.0] * 7


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(2, 3, 5)
def test_integer_averages_are_exact_or_refused(ranks: int) -> None:
    exact = refused = 0
    for form, dtype in product(("all_reduce", "reduce", "reduce_scatter"), ("uint8", "int32")):
        for name in [None, *algorithms(form)]:
            try:
                check(Case(form, dtype, "avg", 100), name)
                exact += 1
            except ArgumentError as error:
                assert "is not exact" in str(error)  # noqa: PT017  the other outcome is as good
                assert name is not None
                refused += 1
    assert exact >= 6
    assert refused > 0 or ranks == 2


def test_misspelt_name_raises_for_suggestions() -> None:
    """Python makes its suggestion of the error's name and object."""
    with pytest.raises(AttributeError, match="no attribute 'allreduce'") as caught:
        _ = unisono.allreduce
    assert (caught.value.name, caught.value.obj) == ("allreduce", unisono)
