"""What torch does not let a backend written in Python do, as docs/torch.md says: a torch that does will fail here."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.torch_ranks import TorchRanks

pytestmark = pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the limits are those of torch 2.13")


def test_of_the_builtin_hooks_of_ddp_the_plain_one_works(ranks: TorchRanks) -> None:
    def work() -> None:
        kinds = torch._C._distributed_c10d.BuiltinCommHookType
        weights = []
        for kind in (None, kinds.ALLREDUCE):
            torch.manual_seed(0)
            bare = nn.Linear(4, 4)
            wrapped = nn.parallel.DistributedDataParallel(bare)
            if kind is not None:
                wrapped._register_builtin_comm_hook(kind)
            wrapped(torch.ones(1, 4) + dist.get_rank()).square().sum().backward()
            weights.append(bare.weight.grad)
        assert torch.equal(*weights)
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
        wrapped._register_builtin_comm_hook(kinds.FP16_COMPRESS)
        with pytest.raises(RuntimeError, match="isTensorList"):
            wrapped(torch.ones(1, 4)).sum().backward()

    ranks(2)(work)


def test_operators_that_ask_for_a_backend_in_cpp(ranks: TorchRanks) -> None:
    def work() -> None:
        # By its name alone: `torch.ops` in a function that is sent to the ranks would be sent, too.
        operators, name = import_module("torch.ops")._c10d_functional, dist.group.WORLD.group_name
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            operators.all_gather_into_tensor_out(torch.ones(2), 2, name, out=torch.empty(4))
        other = 1 - dist.get_rank()
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            operators.batch_p2p_ops(["isend", "irecv"], [other] * 2, [0, 0], [torch.ones(3), torch.empty(3)], name)

    ranks(2)(work)


def test_groups_are_made_not_split_or_shrunk(ranks: TorchRanks) -> None:
    def work() -> None:
        with pytest.raises(RuntimeError, match="not safe to split"):
            dist.split_group(None, [[0, 1]])
        dist.barrier()

    ranks(2)(work)


def test_a_timeout_is_set_by_the_group_itself(ranks: TorchRanks) -> None:
    def work() -> None:
        world = dist.group.WORLD
        with pytest.warns(UserWarning, match="only supported for either nccl or gloo"):
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=50), world)
        world.set_timeout(timedelta(seconds=50))

    ranks(2)(work)
