"""An error within backward, and functional collectives by their values."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.integrations.torch.test_data_parallel import model

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


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
