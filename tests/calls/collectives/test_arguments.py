"""Wrong arguments raise on the rank that gave them, before anything moves; the group goes on."""

import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unisono
from tests.schedule.exchange.files import FILES
from tests.support.matrix import Case
from tests.support.matrix_driver import algorithms, check
from unisono import AlgorithmError, ArgumentError
from unisono.base.errors import DTypeError
from unisono.schedule import send


def f(count: int = 4) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32)


def q(scale: float, count: int = 4) -> torch.Tensor:
    return torch.quantize_per_tensor(f(count), scale, 0, torch.quint8)


def qs(scale: float) -> list[torch.Tensor]:
    return [q(scale) for _ in range(3)]


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
    ('all_reduce(f(), "xor")', ArgumentError, "op: unknown op 'xor'"),
    ('scan(f(), "avg")', ArgumentError, "got avg, which scan does not have"),
    ("all_reduce(f(1).expand(4))", ArgumentError, "tensor: .*share memory"),
    ("reduce(f(1).expand(4), 0)", ArgumentError, "tensor: .*share memory"),
    ("broadcast(f(1).expand(4), 1)", ArgumentError, "tensor: .*share memory"),
    ("all_gather_single(f(1).expand(8), f())", ArgumentError, "output"),
    ("all_gather([f(), f(1).expand(4)], f())", ArgumentError, r"tensor_list\[1\]"),
    ("all_reduce(f().to_sparse())", DTypeError, "to_dense"),
    ("all_reduce(f().to('meta'))", ArgumentError, "got a meta tensor.*to_empty"),
    ("all_reduce(nested())", DTypeError, "tensor: got a nested .*unbind"),
    ("in_grad(all_reduce)", DTypeError, "tensor: .*without memory of its own"),
    ("all_reduce(q(1.0))", DTypeError, "sum: got quint8"),
    ("broadcast(f().to(torch.cfloat).conj(), 1)", ArgumentError, "conjugate"),
    ("broadcast(f(), 2)", ArgumentError, "src: got 2, .*0 to 1"),
    ("reduce(f(), -1)", ArgumentError, "dst: got -1"),
    ("gather(f(), None, True)", DTypeError, "dst: .*bool"),
    ("all_gather([f()], f())", ArgumentError, "tensor_list: got 1 tensors, expected 2"),
    ("reduce_scatter(f(), [f(), f(), f()])", ArgumentError, "input_list: .*got 3"),
    ("all_to_all(3, [f(), f()])", DTypeError, "output_tensor_list: .*int"),
    ("all_to_all([f(), f()], None)", DTypeError, "input_tensor_list"),
    ("reduce_scatter(f(), f(8))", DTypeError, "input_list: .*reduce_scatter_single"),
    ("all_to_all([], [])", ArgumentError, "input_tensor_list: got 0 tensors, expected 2"),
    ("all_gather([f(), None], f())", DTypeError, r"tensor_list\[1\]: .*NoneType"),
    ("all_gather((f() for _ in range(2)), f())", DTypeError, "tensor_list"),
    ("all_gather([f(5), f()], f())", ArgumentError, r"tensor_list\[0\]: got float32\[5\]"),
    ("reduce_scatter(f(), [f(), f().double()])", ArgumentError, r"input_list\[1\]: got float64\[4\]"),
    ("all_gather(None, torch.zeros([1] * 9))", ArgumentError, "9 dimensions"),
    ("scatter(f(), None, 0)", ArgumentError, "scatter_list: got None on rank 0"),
    ("scatter(f(), [f(), f()], 1)", ArgumentError, "on rank 1 .* only"),
    ("all_gather_single(f(7), f())", ArgumentError, "output: .*8 elements"),
    ("all_gather_single(f(8).double(), f())", ArgumentError, "output: got float64.*the dtype"),
    ("reduce_scatter_single(f(), f(9))", ArgumentError, "input: .*8 elements"),
    ("all_to_all_single(f(5), f(5))", ArgumentError, "multiple of 2"),
    ("all_to_all_single(f(6), f(4))", ArgumentError, "output: got"),
    ("reduce_scatter_single(w[3:7], w[:8])", ArgumentError, "share memory"),
    ("all_gather_single(w[:8], w[3:7])", ArgumentError, "share memory"),
    ("all_to_all([w[:4], w[4:8]], [w[:4], w[4:8]])", ArgumentError, "share memory"),
    ("gather(w[4:8], [w[:4], w[4:8]], 0)", ArgumentError, "share memory"),
    ("scatter(w[4:8], [w[:4], w[4:8]], 0)", ArgumentError, "share memory"),
    ('all_reduce(f(), algorithm="rnig")', ArgumentError, "'ring'"),
    ('all_reduce(f(), algorithm="broadcast.linear")', ArgumentError, "for broadcast, expected one for all_reduce"),
    ("all_reduce(f(), algorithm=3)", ArgumentError, "algorithm: got 3"),
    ("all_reduce(f(), algorithm=wrong)", AlgorithmError, "counted twice"),
    ('all_to_all([f(), f()], [f(), f()], algorithm="rnig")', ArgumentError, "rnig"),  # before sizes are exchanged
    ('all_gather(None, f(), algorithm="rnig")', ArgumentError, "rnig"),
    ("all_reduce(f(), algorithm=file)", ArgumentError, r"\.xml is a table for 4 ranks and root 0, .* for 2 ranks"),
    ("broadcast(f(), 0, algorithm=file)", ArgumentError, "is an algorithm for all_reduce, .* broadcast"),
    ('all_reduce(f(), algorithm="no.xml")', ArgumentError, r"cannot read .*no\.xml: No such file"),
    ("all_gather([q(0.5), q(0.5)], q(0.25))", ArgumentError, "quantization"),
    ("all_gather([q(0.5), q(0.25)], q(0.5))", ArgumentError, r"tensor_list\[1\]: its quantization"),
    ("all_to_all_single(q(0.5), q(0.25))", ArgumentError, "quantization"),
    ("scatter(f(), torch.zeros(2, 4), 0)", DTypeError, "scatter_list: .*got Tensor"),
    ("all_to_all_single(f(), f(), 2, [2, 2])", DTypeError, "got 2, expected 2 integers"),
    ("all_to_all_single(f(), f(), [1.5, 2.5], [2, 2])", DTypeError, "expected 2 integers"),
    ('broadcast_module("model")', DTypeError, "model: .*got str"),
    ('all_reduce(f(), algorithm=["x"])', TypeError, "list"),
    ("all_reduce(freed())", DTypeError, "tensor: .*without memory"),
    ("all_reduce_coalesced([f(), freed()])", DTypeError, r"tensors\[1\]: .*without memory"),
    ("all_gather([torch.zeros(4, 2)[:, 0]] * 2, f())", ArgumentError, "share memory"),
    ("all_to_all_single(w[:8], w[4:])", ArgumentError, "share memory"),
    ("all_to_all_single(f(3), f(2), [1, 1], [1, 1])", ArgumentError, "output_split_sizes: .* with the sum"),
    ("broadcast_module(torch.nn.LazyLinear(3))", ArgumentError, "weight: has no shape yet"),
    ('broadcast_module({"n": 3})', DTypeError, "n: got int, expected"),
    # of lists of tensors
    ("all_reduce_coalesced(f())", DTypeError, "tensors: got Tensor"),
    ("all_reduce_coalesced(np.ones(3))", DTypeError, "tensors: got ndarray, expected a list"),
    ("all_reduce_coalesced([1.0])", DTypeError, r"tensors\[0\]"),
    ("all_reduce_coalesced([f(1).expand(4)])", ArgumentError, r"tensors\[0\]"),
    ("all_reduce_coalesced([w[:6], f(3), w[5:]])", ArgumentError, r"tensors\[0\] and tensors\[2\] share"),
    ("all_reduce_coalesced([f()] * 2)", ArgumentError, r"tensors\[0\] and tensors\[1\] share"),
    ("broadcast_coalesced([q(1.0)], 0)", DTypeError, "int_repr"),
    ("broadcast_coalesced([f()], 9)", ArgumentError, "src: got 9"),
    ("all_gather_coalesced([f(8)], [f(), f()])", ArgumentError, "outputs: got 1 tensors, expected 2"),
    ("all_gather_coalesced([f()], [f()])", ArgumentError, r"outputs\[0\]"),
    ("all_gather_coalesced([w[:8]], [w[3:7]])", ArgumentError, r"inputs\[0\] and outputs\[0\] share"),
    ("all_gather_coalesced([f(20), w[8:10]], [w[:10], w[2:3]])", ArgumentError, r"inputs\[0\] and outputs\[1\] share"),
    ("reduce_scatter_coalesced([w[4:8], f(1)], [w[:8], f(2)])", ArgumentError, r"outputs\[0\] and inputs\[0\] share"),
    ("all_reduce_coalesced([f().long()], premul_sum(2.0))", DTypeError, "premul_sum: got int64"),
    # of objects
    ("all_gather_object([None], 1)", ArgumentError, "got 1 items, expected 2"),
    ("all_gather_object((None, None), 1)", DTypeError, "got tuple, expected a list"),
    ("all_gather_object([None, None], DEEP)", DTypeError, r"obj: builtins\.object at .*\['deep'\]\[1\]"),
    ("gather_object(DEEP, [None, None])", DTypeError, r"obj: builtins\.object at .*\['deep'\]\[1\]"),
    ("broadcast_object_list([DEEP], 0)", DTypeError, r"object_list: builtins\.object at .*\['deep'\]\[1\]"),
    ("scatter_object_list([None], [1, DEEP], 0)", DTypeError, r"scatter_object_input_list\[1\]: builtins\.object"),
    ("gather_object(1, None, 0)", DTypeError, "got NoneType"),
    ("gather_object(1, [0, 0], 1)", ArgumentError, "Pass None here"),
    ("broadcast_object_list(None)", DTypeError, "object_list: got NoneType"),
    ("scatter_object_list([], [0, 0])", ArgumentError, "got an empty list"),
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
    "DEEP": {"deep": [1, object()]}, "f": f, "freed": freed, "in_grad": in_grad, "nested": nested, "np": np, "q": q,
    "qs": qs, "torch": torch, "wrong": wrong,
}  # fmt: skip
"""What a row may name; besides w, 12 numbers, and a file with an algorithm."""


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
def test_wrong_arguments_raise_on_their_rank(
    tmp_path: Path, call: str, kind: type[Exception], words: str, known: bool
) -> None:
    """The other rank, which would wait for it, raises in the same call, and says why; the next call goes well."""
    unisono.init().forget_plans()
    if known:
        right()
    told, file = [""], tmp_path / "ring.xml"
    if unisono.get_rank() == 0:
        file.write_text(FILES["fused ring of 4"])
        with pytest.raises(kind, match=words) as caught:
            eval(call, {**HELPERS, "w": f(12), "file": f"{file}"})  # noqa: S307  our own rows
        told = [" ".join(str(caught.value).split())[:60]]
    else:
        with pytest.raises(unisono.MismatchError, match="refused there") as heard:
            unisono.barrier(timeout_s=30)
    unisono.broadcast_object_list(told, 0)
    assert unisono.get_rank() == 0 or told[0] in str(heard.value)


ALONE: list[tuple[str, type[Exception], str]] = [
    ("send([1.0], 0)", DTypeError, "tensor: got list, expected a torch.Tensor"),
    ("send(q(0.5), 0)", DTypeError, "int_repr"),
    ("send(f(), 2)", ArgumentError, "dst: got 2, expected a rank of this group, 0 to 1"),
    ("isend(f(), None)", DTypeError, "dst: got NoneType, expected a rank"),
    ("send(f(1).view([1] * 256), 0)", ArgumentError, "got 256 dimensions, expected at most 255"),
    ("send(f(), 0, tag=-3)", ArgumentError, "tag: got -3"),
    ("send(f(), 0, tag=True)", DTypeError, "tag: got bool, expected"),
    ("recv(f(), 0, tag=1 << 63)", ArgumentError, "tag: got "),
    ("irecv(f(), 2)", ArgumentError, "src: got 2"),
    ("recv(f(1).expand(3), 0)", ArgumentError, "share memory"),
    ("irecv(f(1).expand(3))", ArgumentError, "share memory"),
    ("recv(f().to(torch.cfloat).conj(), 0)", ArgumentError, "resolve_conj"),
    ("sendrecv(f(6), 0, f().as_strided((3, 2), (1, 1)), 0)", ArgumentError, "share memory"),
    ("sendrecv(w[:4], 0, w[:4], 0)", ArgumentError, "share memory"),
    ("P2POp(irecv, f().as_strided((3, 2), (1, 1)), 0)", ArgumentError, "share memory"),
    ("P2POp(send, f(), 0)", ArgumentError, "expected unisono.isend or unisono.irecv"),
    ("P2POp(isend, f(), 7)", ArgumentError, "dst: got 7"),
    ("batch_isend_irecv([P2POp(isend, f(), 0), f()])", DTypeError, r"p2p_op_list\[1\]: got .*, expected a P2POp"),
    ("send_object_list([np.float64(1)], 1)", DTypeError, "float64"),
    ("send_object_list((1, 2), 1)", DTypeError, "object_list: got tuple, expected a list"),
    ('all_reduce(f(), group="world")', DTypeError, "group: got str, expected a Group"),
    ('new_group(group="world")', DTypeError, "group: got str, expected a Group"),
    ('destroy_group("world")', DTypeError, "group: got str, expected a Group"),
    ("empty(2, True)", DTypeError, "shape: got bool, expected an integer"),
    ("empty((True,))", DTypeError, "shape: got bool, expected an integer"),
    ("init().empty(2, 2.0)", DTypeError, "shape: got float, expected an integer"),
    ("empty(2, -1)", ArgumentError, "negative"),
    ("empty(3, dtype=torch.quint8)", DTypeError, "quint8"),
    ('empty(3, dtype="float32")', DTypeError, "dtype: got str, expected a torch.dtype"),
    ("init().shrink(without=[7])", ArgumentError, "rank 7 is not in group"),
    ("init().shrink(without=3)", ArgumentError, "without: got int, expected a list of ranks"),
    ("World(True)", ArgumentError, "got True, expected a whole number"),
    ("premul_sum(torch.ones(2))", ArgumentError, "2 elements"),
    ("premul_sum(torch.tensor(1j))", DTypeError, "expected a real number"),
    ('make_op("sum")', DTypeError, "got str"),
    ("make_op(max, name=3)", DTypeError, "name: got .*, expected a str"),
    ('make_op(max, name="\\ud800")', ArgumentError, "name: .* has a surrogate"),
    ("flatten_([w, w])", ArgumentError, "twice"),
    ("flatten_([f().view(2, 2).t()])", ArgumentError, r"tensors\[0\]: got a tensor that is not contiguous"),
]  # fmt: skip
"""What a rank calls for which no other one waits, the error, and what its message names."""


@pytest.mark.parametrize(("call", "kind", "words"), ALONE, ids=[row[0] for row in ALONE])
@pytest.mark.ranks(2, hosts="2x1")
def test_wrong_arguments_concern_no_other_rank(call: str, kind: type[Exception], words: str) -> None:
    """Also where short messages need not wait. Nothing has moved: the next message is the first."""
    other, got = 1 - unisono.get_rank(), f(1).view([1] * 255)
    for _ in range(2):
        with pytest.raises(kind, match=words):
            eval(call, {**HELPERS, "w": f(12)})  # noqa: S307  our own rows
        unisono.sendrecv(got + unisono.get_rank(), other, got, other)
        assert got.item() == other
        got.zero_()


DIFFERENT: list[tuple[str, str, tuple[str, ...]]] = [
    ("all_reduce_coalesced(ones(2, 4, 3))", "all_reduce_coalesced(ones(2, 3, 4))", ("rank 2 differs", "tensors")),
    ("all_reduce_coalesced(ones(2, 3, 4, 0))", "all_reduce_coalesced(ones(2, 3, 4))", ("rank 2 differs", "tensors")),
    ("all_reduce_coalesced(ones(2) + ones(3, dtype=torch.int))", "all_reduce_coalesced(ones(2, 3))", ("rank 2",)),
    ("broadcast_coalesced(ones(*[5] * 70, 6, 5), 0)", "broadcast_coalesced(ones(*[5] * 71, 6), 0)", ("rank 2",)),
    ("all_reduce(ones(10)[0])", "all_reduce_coalesced(ones(10))", ("rank 2 differs",)),
    ("broadcast_object_list([1], 2)", "broadcast_object_list([1], 0)", ("src=2",)),
    ("all_gather(ones(3, 3, 3), f(3))", "all_gather(None, f(3))", ("of unknown sizes",)),
    ("all_gather(None, f(3).int())", "all_gather(None, f(3).long())", ("int32", "int64")),
    ("all_gather_single(f(15), f(5))", "all_gather_single(f(9), f(3))", ("rank 2  all_gather(float32[5])",)),
    ("all_to_all(ones(3, 3, 3), ones(3, 3, 5))", "all_to_all(ones(3, 3, 3), ones(3, 3, 3))", ("5 elements",)),
    ("gather(f(5), None, 0)", "gather(f(3), None if me else ones(3, 3, 3), 0)",
     ("rank 2 differs", "gives rank 0 5 elements", "expects 3 elements from rank 2")),
    ("scatter(f(5), None, 0)", "scatter(f(3), None if me else ones(3, 3, 3), 0)",
     ("gives rank 2 3 elements", "expects 5 elements from rank 0")),
    ("broadcast(q(0.25), 1)", "broadcast(q(0.5), 1)", ("* 0.25", "* 0.5")),
    ("all_gather(qs(0.25), q(0.25))", "all_gather(qs(0.5), q(0.5))", ("* 0.25", "* 0.5")),
    ("gather(q(0.25), None, 0)", "gather(q(0.5), None if me else qs(0.5), 0)", ("* 0.25",)),
    ("scatter(q(0.25), None, 0)", "scatter(q(0.5), None if me else qs(0.5), 0)", ("* 0.25",)),
    ("all_to_all_single(q(0.25, 6), q(0.25, 6))", "all_to_all_single(q(0.5, 6), q(0.5, 6))", ("* 0.25", "* 0.5")),
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
        _ = unisono.allreduce  # type: ignore[attr-defined]
    assert (caught.value.name, caught.value.obj) == ("allreduce", unisono)
