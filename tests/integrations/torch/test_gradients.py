"""Calls that gradients flow through, and an error within backward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.integrations.torch.test_data_parallel import model
from tests.support.on_ranks import in_process_group

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


@pytest.mark.parametrize("size", [2, 3])
@in_process_group("size")
def test_values_and_gradients_of_calls_by_their_formulae(size: int) -> None:
    from torch.distributed.nn import functional

    me, world, everybody = dist.get_rank(), dist.group.WORLD, range(size)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, 2 * size, generator=generator)  # row r: what rank r has
    blocks = x.view(size, size, 2)  # [r, q]: what rank r has for rank q
    w = torch.randn(size, 2 * size, generator=generator)  # row r: the derivative after rank r's result
    weights = w.view(size, size, 2)
    many = torch.randn(size, size, 2 * size, generator=generator)  # the same for results of all ranks' rows

    def check(
        call: Callable[[torch.Tensor], Any], value: torch.Tensor | None, after: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        tensor = x[me].clone().requires_grad_()
        got = call(tensor)
        got = got if isinstance(got, torch.Tensor) else torch.stack(list(got))
        if value is not None:
            assert torch.allclose(got, value, atol=1e-5)
        (got * after.view_as(got)).sum().backward()
        assert tensor.grad is not None
        assert torch.allclose(tensor.grad, gradient, atol=1e-5)

    def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
        return list(tensor.view(size, 2).unbind())

    def empty() -> list[torch.Tensor]:
        return [torch.empty(2) for _ in everybody]

    zero, first, last = torch.zeros(2 * size), me == 0, me == size - 1
    root = size - 1
    total, given = x.sum(0), w.sum(0)
    check(lambda t: functional.all_reduce(t, group=world), total, w[me], given)
    check(lambda t: functional.broadcast(t, root, world), x[root], w[me], given if last else zero)
    check(lambda t: functional.reduce(t, root, group=world), total if last else None, w[me], w[root])
    check(lambda t: functional.all_gather(t, world), x, many[me], many.sum(0)[me])
    check(lambda t: functional.gather(t, root, world), x if last else None, many[me], many[root][me])
    mine = w[:, :2]  # row r: the derivative after rank r's result of two numbers
    check(lambda t: functional.scatter(parts(t), 0, world), blocks[0][me], mine[me], mine.flatten() * first)
    summed = blocks.sum(0)
    check(
        lambda t: functional.reduce_scatter(torch.empty(2), parts(t), group=world), summed[me], mine[me], mine.flatten()
    )
    exchanged, back = blocks[:, me], weights[:, me].flatten()
    check(lambda t: functional.all_to_all(empty(), parts(t), world), exchanged, w[me], back)
    check(
        lambda t: functional.all_to_all_single(torch.empty(2 * size), t, group=world), exchanged.flatten(), w[me], back
    )


@pytest.mark.ranks(2, backend="unisono")
def test_an_error_within_backward_reaches_the_user() -> None:
    wrapped = nn.parallel.DistributedDataParallel(model())
    wrapped(torch.randn(2, 16)).sum().backward()
    if dist.get_rank():
        with pytest.raises(RuntimeError, match="disagree"):
            dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(1))
    else:
        with pytest.raises(RuntimeError, match="disagree"):
            wrapped(torch.randn(2, 16)).sum().backward()
        dist.all_reduce(torch.ones(1))


@pytest.mark.ranks(2, backend="unisono")
def test_functional_collectives() -> None:
    from torch.distributed import _functional_collectives as functional

    me, world = dist.get_rank(), dist.group.WORLD
    ones = torch.ones(2) * (me + 1)
    assert functional.all_reduce(ones, "sum", world).tolist() == [3.0, 3.0]
    assert functional.all_gather_tensor(ones, 0, world).tolist() == [1.0, 1.0, 2.0, 2.0]
    assert functional.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, world).tolist() == [4.0 * me, 4.0 * me + 2]
    assert functional.all_to_all_single(ones, None, None, world).tolist() == [1.0, 2.0]
    assert functional.broadcast(ones, 1, world).tolist() == [2.0, 2.0]
    for one in functional.all_reduce_coalesced([ones, ones], "sum", world):
        assert one.tolist() == [3.0, 3.0]
    for one in functional.all_gather_into_tensor_coalesced([ones, ones], world):
        assert one.tolist() == [1.0, 1.0, 2.0, 2.0]
    for one in functional.reduce_scatter_tensor_coalesced([ones, ones], "sum", [0, 0], world):
        assert one.tolist() == [3.0]
