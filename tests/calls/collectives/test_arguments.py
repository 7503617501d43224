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
from unisono import ArgumentError
from unisono.base.errors import DTypeError
from unisono.schedule import send


def f(count: int = 4) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32)


def expanded() -> torch.Tensor:
    return torch.zeros(1).expand(4)


def sparse() -> torch.Tensor:
    return torch.eye(2).to_sparse()


def meta() -> torch.Tensor:
    return torch.empty(4, device="meta")


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor([f(14), f(17)])  # a size that no plan is kept for


def in_grad(call: Callable[[torch.Tensor], Any]) -> None:
    torch.func.grad(lambda tensor: call(tensor * 2) or tensor.sum())(f())


def quantized() -> torch.Tensor:
    return torch._empty_affine_quantized([4], scale=1.0, zero_point=0, dtype=torch.quint8)


def conjugate() -> torch.Tensor:
    return torch.zeros(4, dtype=torch.complex64).conj()


def freed() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def in_part() -> list[torch.Tensor]:
    whole = f(10)
    return [whole[:6], f(3), whole[5:]]


def the_block_of_another() -> None:
    whole = f(8)
    unisono.reduce_scatter_coalesced([whole[4:], f(1)], [whole, f(2)])


def shifted() -> tuple[torch.Tensor, torch.Tensor]:
    whole = f(12)
    return whole[:8], whole[4:]


def overlapping() -> tuple[torch.Tensor, torch.Tensor]:
    whole = f(10)
    return whole[:8], whole[3:7]


# Each with two ranks, on rank 0. What to call, the error, and what its message names.
WRONG: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "an array": (lambda: unisono.all_reduce(np.ones(3)), DTypeError, r"got ndarray, .* Pass torch.from_numpy\(array\)"),
    "no tensor": (lambda: unisono.all_reduce([1.0]), DTypeError, "tensor: got list, expected a torch.Tensor"),
    "no op": (lambda: unisono.all_reduce(f(), "xor"), ArgumentError, "op: unknown op 'xor'"),
    "an op of another kind": (lambda: unisono.all_reduce(f(), 3), DTypeError, "op: 3"),
    "no order": (lambda: unisono.all_reduce(torch.ones(3, dtype=torch.cfloat), "max"), DTypeError, "complex64"),
    "an average of scans": (lambda: unisono.scan(f(), "avg"), ArgumentError, "got avg, which scan does not have"),
    "a factor of integers": (
        lambda: unisono.all_reduce(torch.ones(3, dtype=torch.int64), unisono.premul_sum(2.0)),
        DTypeError, "premul_sum: got int64"),
    "booleans": (lambda: unisono.reduce(torch.ones(3, dtype=torch.bool), 0, "avg"), DTypeError, "bool"),
    "an expanded tensor": (lambda: unisono.all_reduce(expanded()), ArgumentError, "tensor: .*share memory"),
    "an expanded tensor, reduce": (lambda: unisono.reduce(expanded(), 0), ArgumentError, "tensor: .*share memory"),
    "an expanded tensor, broadcast": (
        lambda: unisono.broadcast(expanded(), 1), ArgumentError, "tensor: .*share memory"),
    "an expanded output": (lambda: unisono.all_gather_single(torch.zeros(1).expand(8), f()), ArgumentError, "output"),
    "an expanded block": (lambda: unisono.all_gather([f(), expanded()], f()), ArgumentError, r"tensor_list\[1\]"),
    "a sparse tensor": (lambda: unisono.all_reduce(sparse()), DTypeError, "to_dense"),
    "a meta tensor": (lambda: unisono.all_reduce(meta()), ArgumentError, "got a meta tensor.*to_empty"),
    "a nested tensor": (lambda: unisono.all_reduce(nested()), DTypeError, "tensor: got a nested .*unbind"),
    "nested tensors in a list": (
        lambda: unisono.all_gather([nested(), nested()], nested()), DTypeError, "tensor: got a nested .*unbind"),
    "a tensor of torch.func": (lambda: in_grad(unisono.all_reduce), DTypeError, "tensor: .*without memory of its own"),
    "a meta tensor in a list": (
        lambda: unisono.all_gather([f(), meta()], f()), ArgumentError, r"tensor_list\[1\].*meta"),
    "a quantized tensor": (lambda: unisono.all_reduce(quantized()), DTypeError, "sum: got quint8"),
    "a conjugate view to write to": (lambda: unisono.broadcast(conjugate(), 1), ArgumentError, "conjugate"),
    "a root that is none": (lambda: unisono.broadcast(f(), 2), ArgumentError, "src: got 2, .*0 to 1"),
    "a negative root": (lambda: unisono.reduce(f(), -1), ArgumentError, "dst: got -1"),
    "a root that is no rank": (lambda: unisono.broadcast(f(), "0"), DTypeError, "src: got str, expected a rank"),
    "a root that is a truth value": (lambda: unisono.gather(f(), None, True), DTypeError, "dst: .*bool"),
    "a short list": (lambda: unisono.all_gather([f()], f()), ArgumentError, "tensor_list: got 1 tensors, expected 2"),
    "a long list": (lambda: unisono.reduce_scatter(f(), [f(), f(), f()]), ArgumentError, "input_list: .*got 3"),
    "no list": (lambda: unisono.all_to_all(3, [f(), f()]), DTypeError, "output_tensor_list: .*int"),
    "no list of inputs": (lambda: unisono.all_to_all([f(), f()], None), DTypeError, "input_tensor_list"),
    "a tensor for a list": (
        lambda: unisono.reduce_scatter(f(), f(8)), DTypeError, "input_list: .*reduce_scatter_single"),
    "an empty list": (lambda: unisono.all_to_all([], []), DTypeError, "input_tensor_list"),
    "None in a list": (lambda: unisono.all_gather([f(), None], f()), DTypeError, r"tensor_list\[1\]: .*NoneType"),
    "a generator": (lambda: unisono.all_gather((f() for _ in range(2)), f()), DTypeError, "tensor_list"),
    "an odd block": (
        lambda: unisono.all_gather([f(5), f()], f()), ArgumentError, r"tensor_list\[0\]: got float32\[5\]"),
    "a block of another dtype": (
        lambda: unisono.reduce_scatter(f(), [f(), f().double()]), ArgumentError, r"input_list\[1\]: got float64\[4\]"),
    "no list on the root": (lambda: unisono.scatter(f(), None, 0), ArgumentError, "scatter_list: got None on rank 0"),
    "a list beside the root": (lambda: unisono.scatter(f(), [f(), f()], 1), ArgumentError, "on rank 1 .* only"),
    "a list beside the destination": (lambda: unisono.gather(f(), [f(), f()], 1), ArgumentError, "on rank 1 .* only"),
    "an output that is too small": (
        lambda: unisono.all_gather_single(f(7), f()), ArgumentError, "output: .*8 elements"),
    "an output of another dtype": (
        lambda: unisono.all_gather_single(f(8).double(), f()), ArgumentError, "output: got float64.*the dtype"),
    "an input that is too large": (
        lambda: unisono.reduce_scatter_single(f(), f(9)), ArgumentError, "input: .*8 elements"),
    "a count that cannot be cut": (lambda: unisono.all_to_all_single(f(5), f(5)), ArgumentError, "multiple of 2"),
    "an output of another size": (lambda: unisono.all_to_all_single(f(6), f(4)), ArgumentError, "output: got"),
    "an output inside the input": (
        lambda: unisono.reduce_scatter_single(*overlapping()[::-1]), ArgumentError, "share memory"),
    "an input inside the output": (lambda: unisono.all_gather_single(*overlapping()), ArgumentError, "share memory"),
    "all_to_all in place": (lambda: in_place(unisono.all_to_all_single), ArgumentError, "share memory"),
    "all_to_all of a list onto itself": (lambda: in_place(unisono.all_to_all), ArgumentError, "share memory"),
    "gather into another's block": (lambda: gather_crosswise(), ArgumentError, "share memory"),
    "scatter from another's block": (lambda: scatter_crosswise(), ArgumentError, "share memory"),
    "an algorithm that does not exist": (lambda: unisono.all_reduce(f(), algorithm="rnig"), ArgumentError, "'ring'"),
    "an algorithm for another": (
        lambda: unisono.all_reduce(f(), algorithm="broadcast.linear"),
        ArgumentError, "for broadcast, expected one for all_reduce"),
    "no algorithm": (lambda: unisono.all_reduce(f(), algorithm=3), ArgumentError, "algorithm: got 3"),
    "a wrong algorithm": (lambda: unisono.all_reduce(f(), algorithm=wrong), unisono.AlgorithmError, "counted twice"),
    "a stacked tensor for a scatter list": (
        lambda: unisono.scatter(f(), torch.zeros(2, 4), 0), DTypeError, "scatter_list: .*got Tensor"),
    "a stacked tensor for a gather list": (
        lambda: unisono.gather(f(), torch.zeros(2, 4), 0), DTypeError, "gather_list: .*got Tensor"),
    "split sizes with None": (
        lambda: unisono.all_to_all_single(f(), f(), [None, 4], [2, 2]), DTypeError, "expected 2 integers"),
    "one split size": (
        lambda: unisono.all_to_all_single(f(), f(), 2, [2, 2]), DTypeError, "got 2, expected 2 integers"),
    "broken split sizes": (
        lambda: unisono.all_to_all_single(f(), f(), [1.5, 2.5], [2, 2]), DTypeError, "expected 2 integers"),
    "a root of objects": (lambda: unisono.gather_object(1, [None, None], dst=5), ArgumentError, "dst: got 5"),
    "no module": (lambda: unisono.broadcast_module("model"), DTypeError, "model: .*got str"),
    "no module to average": (lambda: unisono.average_gradients(3), DTypeError, "model: .*got int"),
    "a list for an algorithm": (lambda: unisono.all_reduce(f(), algorithm=["x"]), TypeError, "list"),
    "a freed tensor": (lambda: unisono.all_reduce(freed()), DTypeError, "tensor: .*without memory"),
    "a freed tensor in a list": (
        lambda: unisono.all_reduce_coalesced([f(), freed()]), DTypeError, r"tensors\[1\]: .*without memory"),
    "zeros that are nowhere": (
        lambda: unisono.broadcast(torch._efficientzerotensor(4), 0), DTypeError, "tensor: .*without memory"),
    "one block twice, strided": (
        lambda: unisono.all_gather([torch.zeros(4, 2)[:, 0]] * 2, f()), ArgumentError, "share memory"),
    "all_to_all onto a part": (lambda: unisono.all_to_all_single(*shifted()), ArgumentError, "share memory"),
    "a meta tensor to broadcast": (lambda: unisono.broadcast(meta(), 0), ArgumentError, "meta"),
    "a freed output": (lambda: unisono.all_gather([freed(), f()], f()), DTypeError, "without memory"),
    "a freed input": (lambda: unisono.all_gather([f(), f()], freed()), DTypeError, "without memory"),
    "a freed block": (lambda: unisono.reduce_scatter(f(), [freed(), f()]), DTypeError, "without memory"),
    "a freed block of all_to_all": (
        lambda: unisono.all_to_all([freed(), f()], [f(), f()]), DTypeError, "without memory"),
    "split sizes of another sum": (
        lambda: unisono.all_to_all_single(torch.zeros(3, 2), torch.zeros(2, 2), [1, 1], [1, 1]),
        ArgumentError, "output_split_sizes: .* with the sum"),
    "a module without shapes": (
        lambda: unisono.broadcast_module(torch.nn.LazyLinear(3)), ArgumentError, "weight: has no shape yet"),
    "an array in a module": (lambda: unisono.broadcast_module({"x": np.ones(2)}), DTypeError, "x: .*torch.from_numpy"),
    "a number in a module": (lambda: unisono.broadcast_module({"n": 3}), DTypeError, "n: got int, expected"),
    "a list for a module": (lambda: unisono.broadcast_module([1]), DTypeError, "model: got list, expected"),
    # of lists of tensors
    "a tensor for tensors": (lambda: unisono.all_reduce_coalesced(f()), DTypeError, "tensors: got Tensor"),
    "an array for tensors": (
        lambda: unisono.all_reduce_coalesced(np.ones(3)), DTypeError, "tensors: got ndarray, expected a list"),
    "a number among tensors": (lambda: unisono.all_reduce_coalesced([1.0]), DTypeError, r"tensors\[0\]"),
    "a sparse one among tensors": (lambda: unisono.all_reduce_coalesced([f(), sparse()]), DTypeError, r"tensors\[1\]"),
    "a nested one among tensors": (
        lambda: unisono.all_reduce_coalesced([f(), nested()]), DTypeError, r"tensors\[1\]: got a nested"),
    "an expanded one among tensors": (
        lambda: unisono.all_reduce_coalesced([expanded()]), ArgumentError, r"tensors\[0\]"),
    "tensors that overlap": (
        lambda: unisono.all_reduce_coalesced(in_part()), ArgumentError, r"tensors\[0\] and tensors\[2\] share"),
    "a tensor twice": (
        lambda: unisono.all_reduce_coalesced([f()] * 2), ArgumentError, r"tensors\[0\] and tensors\[1\] share"),
    "tensors with no op": (lambda: unisono.all_reduce_coalesced([f()], "plus"), ArgumentError, "op"),
    "tensors without an order": (
        lambda: unisono.all_reduce_coalesced([torch.ones(4, dtype=torch.cfloat)], "max"), DTypeError, "max"),
    "tensors from no root": (lambda: unisono.broadcast_coalesced([f()], 9), ArgumentError, "src: got 9"),
    "fewer outputs than inputs": (
        lambda: unisono.all_gather_coalesced([f(8)], [f(), f()]), ArgumentError, "outputs: got 1 tensors, expected 2"),
    "no outputs": (lambda: unisono.all_gather_coalesced([], [f(), f(8)]), ArgumentError, "outputs: got 0 tensors"),
    "a small output": (lambda: unisono.all_gather_coalesced([f()], [f()]), ArgumentError, r"outputs\[0\]"),
    "an input in part an output": (
        lambda: unisono.all_gather_coalesced(*([one] for one in overlapping())), ArgumentError,
        r"inputs\[0\] and outputs\[0\] share"),
    "another's block among tensors": (
        lambda: the_block_of_another(), ArgumentError, r"outputs\[0\] and inputs\[0\] share"),
    "factors of integers": (
        lambda: unisono.all_reduce_coalesced([torch.ones(4, dtype=torch.int64)], unisono.premul_sum(2.0)),
        DTypeError, "premul_sum: got int64"),
    # of groups
    "a group of an unknown rank": (lambda: unisono.new_group([0, 2]), ArgumentError, "rank 2 is not in group .*size 2"),
    "a group of a negative rank": (lambda: unisono.new_group([-1]), ArgumentError, "rank -1 is not in group"),
    "a group of one rank twice": (lambda: unisono.new_group([0, 0]), ArgumentError, "each once"),
    "a group of nobody": (lambda: unisono.new_group([]), ArgumentError, "at least one"),
    "a group of a truth value": (lambda: unisono.new_group([True]), DTypeError, "bool"),
    "a group of a text": (lambda: unisono.new_group(["0"]), DTypeError, "str"),
    "a group of a number": (lambda: unisono.new_group(1), DTypeError, "int"),
    "a group without time": (lambda: unisono.new_group(timeout_s=0), ArgumentError, "timeout_s"),
    "a group with a surrogate": (
        lambda: unisono.new_group(name="\ud800"), ArgumentError,
        r"name: got '\\ud800', which has a surrogate"),
    "a broken color": (lambda: unisono.split(1.5), DTypeError, "color"),
    "a large color": (lambda: unisono.split(1 << 63), ArgumentError, "color: .*64 bits"),
    "no key": (lambda: unisono.split(1, None), DTypeError, "key"),
    "a large key": (lambda: unisono.split(0, 1 << 64), ArgumentError, "key"),
    "a name that is none": (lambda: unisono.split(0, name=5), DTypeError, "name: got int, expected a str"),
}  # fmt: skip


def in_place(function: Callable[..., Any]) -> None:
    tensor = f(8)
    arguments = (
        (tensor, tensor) if function is unisono.all_to_all_single else ([*tensor.view(2, 4)], [*tensor.view(2, 4)])
    )
    function(*arguments)


def gather_crosswise() -> None:
    blocks = [f(), f()]
    unisono.gather(blocks[1], blocks, 0)


def scatter_crosswise() -> None:
    blocks = [f(), f()]
    unisono.scatter(blocks[1], blocks, 0)


def wrong(r, p):
    for _ in range(2):
        yield send(r, (r + 1) % p, 0, op=1)


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
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.ranks(2)
def test_wrong_arguments_raise_on_their_rank(name: str, known: bool) -> None:
    """The other rank, which would wait for it, raises in the same call, and says why; the next call goes well."""
    call, kind, words = WRONG[name]
    unisono.init().forget_plans()
    if known:
        right()
    told = [""]
    if unisono.get_rank() == 0:
        with pytest.raises(kind, match=words) as caught:
            call()
        told = [" ".join(str(caught.value).split())[:60]]
    else:
        with pytest.raises(unisono.MismatchError, match="refused there") as heard:
            unisono.barrier(timeout_s=30)
    unisono.broadcast_object_list(told, 0)
    assert unisono.get_rank() == 0 or told[0] in str(heard.value)


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
