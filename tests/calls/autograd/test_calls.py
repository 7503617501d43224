"""Differentiable collectives: their values, who requires gradients, and ranks that do not go together.

Gradients against differences: every element of every rank is moved a little, and the sum of all losses looked at.
"""

from collections.abc import Callable, Sequence

import pytest
import torch

import unisono
from tests.support.each import each
from tests.support.on_ranks import in_world
from unisono import ArgumentError, DTypeError, MismatchError
from unisono import autograd as ag


def mine(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(10 * unisono.get_rank() + seed))


def everybody(*shape: int, seed: int = 0) -> list[torch.Tensor]:
    ranks = range(unisono.get_world_size())
    return [torch.randn(shape, generator=torch.Generator().manual_seed(10 * rank + seed)) for rank in ranks]


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.ranks(1, 2, 3, 4)
def test_values(grad: bool, ranks: int) -> None:
    me, last = unisono.get_rank(), ranks - 1
    all_of = everybody(2 * ranks, 3)
    stacked = torch.stack(all_of)
    x = mine(2 * ranks, 3).requires_grad_(grad)
    expected = {"sum": stacked.sum(0), "avg": stacked.mean(0), "product": stacked.prod(0), "min": stacked.amin(0)}
    blocks = list(x.chunk(ranks))
    for op, whole in expected.items():
        part = whole.chunk(ranks)[me]
        torch.testing.assert_close(ag.all_reduce(x, op), whole.requires_grad_(grad))
        on_last = whole if me == last else torch.zeros_like(whole)
        torch.testing.assert_close(ag.reduce(x, last, op), on_last)
        torch.testing.assert_close(ag.reduce_scatter(blocks, op), part)
        torch.testing.assert_close(ag.reduce_scatter_single(x, op), part)
    assert torch.equal(ag.broadcast(x, last), all_of[last])
    assert torch.equal(ag.scatter(blocks if me == last else None, last), all_of[last].chunk(ranks)[me])
    assert all(map(torch.equal, ag.all_gather(x), all_of))
    assert torch.equal(ag.all_gather_single(x), torch.cat(all_of))
    gathered = ag.gather(x, last)
    assert len(gathered) == ranks
    assert all(map(torch.equal, gathered, all_of)) if me == last else not any(t.numel() for t in gathered)
    exchanged = [other.chunk(ranks)[me] for other in all_of]
    assert all(map(torch.equal, ag.all_to_all(blocks), exchanged))
    assert torch.equal(ag.all_to_all_single(x), torch.cat(exchanged))
    assert torch.equal(x, mine(2 * ranks, 3))


@pytest.mark.ranks(3)
def test_results_require_gradients_everywhere_or_nowhere() -> None:
    x = torch.ones(3)
    assert not ag.all_reduce(x).requires_grad
    assert not ag.scatter([x, x, x] if unisono.get_rank() == 1 else None, 1).requires_grad
    x.requires_grad_(unisono.get_rank() == 1)
    assert ag.all_reduce(x).requires_grad
    assert ag.scatter([x, x, x] if unisono.get_rank() == 1 else None, 1).requires_grad
    assert all(result.requires_grad for result in ag.gather(x))
    with torch.no_grad():
        before = unisono.init().host.call_number
        assert not ag.all_reduce(x).requires_grad
        assert unisono.init().host.call_number == before + 1


@pytest.mark.ranks(3)
def test_ties_and_zeros() -> None:
    me = unisono.get_rank()
    x = torch.tensor([1.0, 2.0, float(me)], requires_grad=True)
    ag.all_reduce(x, "max").sum().backward()
    assert torch.equal(x.grad, torch.tensor([1.0, 1.0, 3.0 if me == 2 else 0.0]))
    y = torch.tensor([0.0, 2.0 if me else 0.0, 3.0], requires_grad=True)
    ag.all_reduce(y, "product").sum().backward()
    assert torch.equal(y.grad, torch.tensor([0.0, 0.0 if me else 12.0, 27.0]))


@pytest.mark.ranks(3)
def test_join_lets_ranks_without_a_use_take_part() -> None:
    x = mine(4).requires_grad_()
    results = ag.gather(x, 1)
    own = x.square().sum()
    loss = own + torch.stack(results).sum() if unisono.get_rank() == 1 else ag.join(own, *results)
    if unisono.get_rank() != 1:
        assert torch.equal(loss, own)
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() + 1)


@pytest.mark.ranks(2)
def test_backward_in_another_order_is_noticed() -> None:
    x = mine(4).requires_grad_()
    results = [ag.all_reduce(x), ag.all_reduce(x)]
    first, second = results if unisono.get_rank() else results[::-1]
    with pytest.raises(MismatchError, match=r"backward of autograd.all_reduce\(made as call #"):
        first.sum().backward()
    assert x.grad is None
    with pytest.raises(MismatchError):
        second.sum().backward()
    y = mine(4).requires_grad_()
    ag.all_reduce(y).sum().backward()
    assert torch.equal(y.grad, torch.full((4,), 2.0))


@pytest.mark.ranks(3)
def test_grad_mode_must_be_the_same() -> None:
    with torch.set_grad_enabled(unisono.get_rank() == 0), pytest.raises(MismatchError, match=r"autograd\.broadcast"):
        ag.broadcast(torch.ones(3), 0)
    ag.broadcast(torch.ones(3), 0)


@pytest.mark.ranks(2)
def test_what_no_call_takes() -> None:
    x = torch.ones(4)
    root = unisono.get_rank() == 0
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: ag.all_reduce([x]), DTypeError, "tensor: expected a torch.Tensor"),
        (lambda: ag.all_reduce(x.int(), "bor"), ArgumentError, "has no gradient"),
        (lambda: ag.all_reduce(x, unisono.ReduceOp.PREMUL_SUM(2.0)), ArgumentError, "has no gradient"),
        (lambda: ag.all_reduce(x, "sun"), ArgumentError, "op"),
        (lambda: ag.reduce(x, 5), ArgumentError, "dst=5"),
        (lambda: ag.reduce_scatter(x, [x, x]), DTypeError, "input_list"),
        (lambda: ag.reduce_scatter([x]), ArgumentError, "input_list: expected 2 tensors"),
        (lambda: ag.reduce_scatter_single(torch.ones(5)), ArgumentError, "tensor: is float32"),
        (lambda: ag.reduce_scatter_single(torch.ones(())), ArgumentError, "tensor: is float32"),
        (lambda: ag.all_to_all_single(torch.ones(5)), ArgumentError, "input: is float32"),
        (lambda: ag.all_reduce(x if root else x[1:], "max"), ArgumentError, r"shapes \[4\], \[3\], in rank order"),
        (lambda: ag.scatter(None if root else [x, x]), (ArgumentError, DTypeError), "tensors"),
    ]
    for call, error, message in refused:
        with pytest.raises(error, match=message):
            call()
        unisono.barrier()


Tensors = Sequence[torch.Tensor]
Function = Callable[[Tensors], Tensors]
REAL, COMPLEX = torch.float64, torch.complex128
STEP = 1e-5


def loss(results: Tensors) -> torch.Tensor:
    """A function of the results that is another one on every rank, and not linear."""
    generator = torch.Generator().manual_seed(unisono.get_rank())
    total = torch.zeros((), dtype=REAL)
    for result in results:
        weight = torch.randn(result.shape, dtype=result.dtype, generator=generator)
        term = (weight * result * result).sum() + (weight.conj() * result.conj()).sum()
        total = total + (term.real if term.is_complex() else term)
    return total


def sum_of_losses(function: Function, inputs: Tensors) -> float:
    total = loss(function(inputs)).detach().clone()
    unisono.all_reduce(total)
    return float(total)


def differences(function: Function, inputs: Tensors, like: Tensors) -> list[torch.Tensor]:
    """The gradients of this rank's inputs, measured."""
    found = [torch.zeros_like(tensor) for tensor in like]
    mine = torch.tensor([sum(tensor.numel() for tensor in like)])
    sizes = [int(size) for size in unisono.all_gather(None, mine)]
    for rank, size in enumerate(sizes):
        for k in range(size):
            for direction in (1, 1j) if like_is_complex(inputs, rank) else (1,):
                values = []
                for sign in (1, -1):
                    moved = [tensor.detach().clone() for tensor in inputs]
                    if rank == unisono.get_rank():
                        flat, at = place(moved, k)
                        flat[at] += sign * STEP * direction
                    leaves = [
                        tensor.requires_grad_(old.requires_grad) for tensor, old in zip(moved, inputs, strict=True)
                    ]
                    values.append(sum_of_losses(function, leaves))
                if rank == unisono.get_rank():
                    flat, at = place(found, k)
                    flat[at] += direction * (values[0] - values[1]) / (2 * STEP)
    return found


def like_is_complex(inputs: Tensors, rank: int) -> bool:
    """Are that rank's inputs complex? Ranks without inputs cannot know by themselves."""
    mine = torch.tensor([int(any(tensor.is_complex() for tensor in inputs))])
    unisono.broadcast(mine, rank)
    return bool(mine)


def place(tensors: Tensors, k: int) -> tuple[torch.Tensor, int]:
    """Element k of the tensors in a row."""
    for tensor in tensors:
        if k < tensor.numel():
            return tensor.view(-1), k
        k -= tensor.numel()
    raise IndexError


def value(*shape: int, dtype: torch.dtype = REAL, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * unisono.get_rank() + seed)
    return torch.randn(shape, dtype=dtype, generator=generator)


def rank() -> int:
    return unisono.get_rank()


def size() -> int:
    return unisono.get_world_size()


def last() -> int:
    return size() - 1


def columns(dtype: torch.dtype) -> list[torch.Tensor]:
    return [value(k % 2 + 1, 1, dtype=dtype, seed=k) for k in range(size())]


def uneven(dtype: torch.dtype) -> list[torch.Tensor]:
    return [value((rank() + 2 * k) % 3, dtype=dtype, seed=k) for k in range(size())]


def exchange(tensors: Tensors) -> Tensors:
    """Blocks of rank + 2 k rows from each rank to rank k."""
    gives = [rank() + 2 * k for k in range(size())]
    takes = [k + 2 * rank() for k in range(size())]
    return [ag.all_to_all_single(tensors[0], takes, gives)]


# What a rank passes, and what is done with it.
CALLS: dict[str, tuple[Callable[[torch.dtype], list[torch.Tensor]], Function]] = {
    "all_reduce": (lambda d: [value(2, 1, dtype=d)], lambda t: [ag.all_reduce(t[0])]),
    "all_reduce avg": (lambda d: [value(2, dtype=d)], lambda t: [ag.all_reduce(t[0], "avg")]),
    "all_reduce of a number": (lambda d: [value(dtype=d)], lambda t: [ag.all_reduce(t[0])]),
    "reduce": (lambda d: [value(1, 2, dtype=d)], lambda t: [ag.reduce(t[0], last())]),
    "reduce avg": (lambda d: [value(2, dtype=d)], lambda t: [ag.reduce(t[0], 0, "avg")]),
    "broadcast": (lambda d: [value(1, 2, dtype=d)], lambda t: [ag.broadcast(t[0], last())]),
    "scatter": (lambda d: uneven(d) if rank() == last() else [], lambda t: [ag.scatter(t or None, last())]),
    "gather": (lambda d: [value(rank() + 1, 1, dtype=d)], lambda t: ag.gather(t[0], last())),
    "all_gather": (lambda d: [value(2, 1, dtype=d)], lambda t: ag.all_gather(t[0])),
    "all_gather of several sizes": (lambda d: [value(rank() + 1, dtype=d)], lambda t: ag.all_gather(t[0])),
    "all_gather_single": (lambda d: [value(1, 2, dtype=d)], lambda t: [ag.all_gather_single(t[0])]),
    "all_gather_single of numbers": (lambda d: [value(dtype=d)], lambda t: [ag.all_gather_single(t[0])]),
    "reduce_scatter": (columns, lambda t: [ag.reduce_scatter(t)]),
    "reduce_scatter avg": (columns, lambda t: [ag.reduce_scatter(t, "avg")]),
    "reduce_scatter_single": (lambda d: [value(2 * size(), 1, dtype=d)], lambda t: [ag.reduce_scatter_single(t[0])]),
    "all_to_all": (uneven, ag.all_to_all),
    "all_to_all_single": (lambda d: [value(size(), 1, dtype=d)], lambda t: [ag.all_to_all_single(t[0])]),
    "all_to_all_single with sizes": (lambda d: [value(sum(rank() + 2 * k for k in range(size())), dtype=d)], exchange),
    "joined": (
        lambda d: [value(2, dtype=d), value(dtype=d)],
        lambda t: [ag.join(t[1], ag.reduce(t[0], 0))] if rank() else [t[1] * ag.reduce(t[0], 0)],
    ),
    "all_reduce product": (lambda d: [value(2, dtype=d)], lambda t: [ag.all_reduce(t[0], "product")]),
}
ORDERED: dict[str, tuple[Callable[[torch.dtype], list[torch.Tensor]], Function]] = {
    "all_reduce min": (lambda d: [value(1, 2, dtype=d)], lambda t: [ag.all_reduce(t[0], "min")]),
    "reduce max": (lambda d: [value(1, 2, dtype=d)], lambda t: [ag.reduce(t[0], last(), "max")]),
    "reduce product": (lambda d: [value(1, 2, dtype=d)], lambda t: [ag.reduce(t[0], last(), "product")]),
    "reduce_scatter max": (columns, lambda t: [ag.reduce_scatter(t, "max")]),
    "reduce_scatter_single product": (
        lambda d: [value(size(), 1, dtype=d)],
        lambda t: [ag.reduce_scatter_single(t[0], "product")],
    ),
}
CASES = [(name, REAL) for name in (*CALLS, *ORDERED)] + [(name, COMPLEX) for name in CALLS]


def gradients(function: Function, inputs: Tensors, create_graph: bool = False) -> list[torch.Tensor]:
    """Of the inputs that require some; every rank takes part."""
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    mine = loss(function(inputs))
    if not wanted:
        mine.backward(create_graph=create_graph)
        return []
    return list(torch.autograd.grad(mine, wanted, create_graph=create_graph))


@pytest.mark.sampled(most=1)
@each("name, dtype", CASES)
@pytest.mark.ranks(2, 3)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    make, function = {**CALLS, **ORDERED}[name]
    inputs = [tensor.requires_grad_() for tensor in make(dtype)]
    found = gradients(function, inputs)
    for one, other in zip(found, differences(function, inputs, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "gather", "all_gather", "all_to_all", "reduce_scatter"])
@pytest.mark.ranks(2, 4)
def test_inputs_that_require_gradients_on_one_rank(name: str, ranks: int) -> None:
    """The others take part, and get none."""
    make, function = CALLS[name]
    for chosen in {0, ranks - 1}:
        inputs = make(REAL)
        for tensor in inputs:
            tensor.requires_grad_(rank() == chosen)
        found = gradients(function, inputs)
        like = inputs if rank() == chosen else []
        for one, other in zip(found, differences(function, inputs, like), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [(name, 2) for name in (*CALLS, *ORDERED) if name != "scatter"] + [("gather", 3), ("reduce_scatter", 3)],
)
@in_world("ranks")
def test_gradients_of_gradients(name: str, ranks: int) -> None:
    make, function = {**CALLS, **ORDERED}[name]
    inputs = [tensor.requires_grad_() for tensor in make(REAL)]

    def inner(tensors: Tensors) -> Tensors:
        return gradients(function, tensors, create_graph=True)

    for one, other in zip(gradients(inner, inputs), differences(inner, inputs, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@each("name, dtype", CASES)
@pytest.mark.ranks(1)
def test_torch_agrees_where_one_rank_is_all(name: str, dtype: torch.dtype) -> None:
    make, function = {**CALLS, **ORDERED}[name]
    inputs = [tensor.requires_grad_() for tensor in make(dtype)]
    assert torch.autograd.gradcheck(lambda *tensors: tuple(function(tensors)), inputs)
    assert torch.autograd.gradgradcheck(lambda *tensors: tuple(function(tensors)), inputs)
