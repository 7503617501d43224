"""Calls that gradients flow through, and an error within backward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.integrations.torch.test_data_parallel import model
from tests.support.on_ranks import as_over_gloo

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


@pytest.mark.parametrize("size", [2, 3])
@as_over_gloo("size")
def test_values_and_gradients_of_calls(size: int) -> list[Any]:
    """Of whole numbers, whose sums are exact. What a root alone gets, others may have anything of."""
    from torch.distributed.nn import functional

    me, world, last = dist.get_rank(), dist.group.WORLD, size - 1
    generator, found = torch.Generator().manual_seed(1 + me), []

    def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
        return list(tensor.view(size, 2).unbind())

    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "all_reduce": lambda t: functional.all_reduce(t, group=world),
        "broadcast": lambda t: functional.broadcast(t, last, world),
        "reduce": lambda t: functional.reduce(t, last, group=world),
        "all_gather": lambda t: functional.all_gather(t, world),
        "gather": lambda t: functional.gather(t, last, world),
        "scatter": lambda t: functional.scatter(parts(t), 0, world),
        "reduce_scatter": lambda t: functional.reduce_scatter(torch.empty(2), parts(t), group=world),
        "all_to_all": lambda t: functional.all_to_all([torch.empty(2) for _ in range(size)], parts(t), world),
        "all_to_all_single": lambda t: functional.all_to_all_single(torch.empty(2 * size), t, group=world),
    }
    for name, call in calls.items():
        tensor = torch.randint(1, 99, (2 * size,), generator=generator).float().requires_grad_()
        got = call(tensor)
        got = got if isinstance(got, torch.Tensor) else torch.stack(list(got))
        (got * torch.randint(1, 99, got.shape, generator=generator)).sum().backward()
        assert tensor.grad is not None
        value = got.tolist() if name not in ("reduce", "gather") or me == last else []
        found.append([name, value, tensor.grad.tolist()])
    return [me, *found]


@pytest.mark.ranks(2, backend="unisono")
def test_error_within_backward_reaches_the_user() -> None:
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
