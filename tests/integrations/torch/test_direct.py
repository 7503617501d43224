"""Calls on a group itself, in all forms of torch's groups, and on views: what they do over Gloo, they do over ours."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.on_ranks import as_over_gloo
from tests.support.torch_ranks import TorchRanks, options

MINUTE = timedelta(minutes=1)


def mine(count: int = 4) -> torch.Tensor:
    return torch.arange(float(count)) + 100 * dist.get_rank()


def blocks(size: int) -> list[torch.Tensor]:
    return [mine() + 10 * rank for rank in range(size)]


def calls(
    group: Any, rank: int, size: int
) -> dict[str, tuple[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """For each form: where its result is, the method, and the arguments."""
    root, op = rank == 1, dist.ReduceOp.MAX
    made: dict[str, Any] = {}

    def add(form: str, written: Any, method: Any, *args: Any, **keywords: Any) -> None:
        made[form] = (written, method, args, keywords)

    for form, rest, keywords in [
        ("alone", (), {}),
        ("op", (op,), {}),
        ("op, timeout", (op, MINUTE), {}),
        ("names", (), {"op": op, "timeout": MINUTE}),
    ]:
        for listed in (False, True):
            t = mine()
            add(f"allreduce {form} {listed}", t, group.allreduce, [t] if listed else t, *rest, **keywords)
        t = mine()
        add(f"reduce_scatter {form}", t, group.reduce_scatter, t, blocks(size), *rest, **keywords)
    t = mine()
    add("allreduce tensors=, opts=", t, group.allreduce, tensors=[t], opts=options(dist.AllreduceOptions, reduceOp=op))
    t = mine()
    add("allreduce tensor=", t, group.allreduce, tensor=t)
    t = [mine(), mine(3)]
    add("allreduce_coalesced", t, group.allreduce_coalesced, t)
    for rest, keywords in [((1,), {}), ((1, MINUTE), {}), ((), {"root": 1}), ((), {"root": 1, "timeout": MINUTE})]:
        form = f"{rest} {sorted(keywords)}"
        t = mine()
        add(f"broadcast {form}", t, group.broadcast, t, *rest, **keywords)
        t = blocks(size) if root else []
        add(f"gather {form}", t, group.gather, t, mine(), *rest, **keywords)
        t = mine()
        add(f"scatter {form}", t, group.scatter, t, blocks(size) if root else [], *rest, **keywords)
    t = mine()
    add("broadcast opts", t, group.broadcast, [t], options(dist.BroadcastOptions, rootRank=1))
    t = mine()
    add("reduce", t if root else None, group.reduce, t, 1, op, timeout=MINUTE)
    for rest in ((), (MINUTE,)):
        t = blocks(size)
        add(f"allgather {rest}", t, group.allgather, t, mine(), *rest)
        t = blocks(size)
        add(f"alltoall_base {rest}", t[0], group.alltoall_base, t[0], mine(), [], [], *rest)
    t = blocks(size)
    add("allgather names", t, group.allgather, output_tensors=[t], input_tensors=[mine()])
    t = mine(4 * size)
    add("_allgather_base", t, group._allgather_base, t, mine())
    t = mine(2)
    for_max = options(dist.ReduceScatterOptions, reduceOp=op)
    add("_reduce_scatter_base", t, group._reduce_scatter_base, t, mine(2 * size), for_max)
    t = mine(2)
    add("_reduce_scatter_base names", t, group._reduce_scatter_base, outputTensor=t, inputTensor=mine(2 * size))
    t = blocks(size)
    add("allgather_coalesced", t, group.allgather_coalesced, [[block] for block in t], [mine()])
    add("barrier", None, group.barrier)
    add("barrier timeout", None, group.barrier, MINUTE)
    add("barrier timeout=", None, group.barrier, timeout=MINUTE)
    add("barrier opts", None, group.barrier, dist.BarrierOptions())
    return made


def test_forms_of_the_methods_of_groups(ranks: TorchRanks) -> None:
    def work() -> dict[str, Any]:
        group, found = dist.group.WORLD, {}
        for form, (written, method, args, keywords) in calls(group, dist.get_rank(), dist.get_world_size()).items():
            assert method(*args, **keywords).wait() is True, form
            tensors = [] if written is None else written if isinstance(written, list) else [written]
            found[form] = [tensor.tolist() for tensor in tensors]
        return found

    theirs = ranks(2, "gloo")(work)
    assert len(theirs[0]) > 30
    for ours in (ranks(2)(work), ranks(2, "gloo", named=range(2))(work)):
        for form in theirs[0]:
            assert [found[form] for found in ours] == [found[form] for found in theirs], form


@as_over_gloo(2)
def test_future_value_has_the_lists_of_the_call() -> list[list[Any]]:
    lists = [[torch.empty(4), torch.empty(3)] for _ in range(dist.get_world_size())]
    future = dist.group.WORLD.allgather_coalesced(lists, [mine(), mine(3)]).get_future()
    future.wait()
    return [[tensor.tolist() for tensor in row] for row in future.value()]


@pytest.mark.ranks(2, backend="unisono")
def test_messages_by_torch_s_names() -> None:
    group, tensor = dist.group.WORLD, mine()
    if dist.get_rank():
        group.send(tensors=[tensor], dstRank=0, tag=3).wait()
    else:
        group.recv(tensors=[tensor], srcRank=1, tag=3).wait()
    assert torch.equal(tensor, torch.arange(4.0) + 100)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda group: group.allreduce(), r"allreduce\(tensors, op=None, timeout=None\) or .*: missing .*'tensors'"),
        (lambda group: group.allreduce(mine(), ops=1), "unexpected keyword argument 'ops'"),
        (lambda group: group.broadcast(mine(), 0, MINUTE, 3), "too many positional arguments"),
        (lambda group: group.allreduce(mine(), op=1, opts=dist.AllreduceOptions()), "unexpected keyword argument 'op'"),
    ],
)
@pytest.mark.ranks(1, backend="unisono")
def test_arguments_that_a_method_does_not_take(make: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        make(dist.group.WORLD)


@pytest.mark.parametrize("backend", ["unisono", "gloo"])
def test_distribute_tensor_leaves_views_usable(ranks: TorchRanks, backend: str) -> None:
    def work() -> list[Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

        mesh, found = init_device_mesh("cpu", (2,)), []
        for placement in (Replicate(), Shard(0), Shard(1), Partial()):
            leaf = (torch.arange(16.0).view(4, 4) + 100 * dist.get_rank()).requires_grad_()
            first, _ = leaf.chunk(2)
            left, _ = leaf.split(2, dim=1)
            spread = distribute_tensor(leaf, mesh, [placement])
            (first.square().sum() + left.sum()).backward()
            found.append((spread.to_local().tolist(), leaf.grad.tolist()))
        return found

    got = ranks(2, backend)(work)
    assert got[0][0][0] == got[1][0][0]  # replicated
    assert got[0][1][0] != got[1][1][0]  # sharded


@as_over_gloo(2)
def test_parameters_are_sent_between_passes() -> list[Any]:
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 4)
    halves = model.weight.chunk(2)
    for parameter in model.parameters():
        dist.broadcast(parameter, 0)  # no torch.no_grad(): Gloo does not ask for it
    (model(torch.ones(2, 4)).sum() + halves[0].sum()).backward()
    return [parameter.grad.tolist() for parameter in model.parameters() if parameter.grad is not None]
