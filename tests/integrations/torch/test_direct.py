"""Calls on a group itself, in all forms of torch's groups, and on views: what they do over Gloo, they do over ours."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.on_ranks import as_over_gloo
from tests.support.torch_ranks import TorchRanks, options

MINUTE = timedelta(minutes=1)


def mine(count: int = 4) -> torch.Tensor:
    return torch.arange(float(count)) + 100 * dist.get_rank()


def blocks(size: int) -> list[torch.Tensor]:
    return [mine() + 10 * rank for rank in range(size)]


def forms(group: Any, rank: int, size: int) -> Iterator[tuple[str, Any, Callable[[Any], Any]]]:
    """For each form: its name, what it writes into, and the call."""
    root, op, for_max = rank == 1, dist.ReduceOp.MAX, options(dist.ReduceScatterOptions, reduceOp=dist.ReduceOp.MAX)
    how: Any

    def on(method: Callable[..., Any], *args: Any, **how: Any) -> Callable[[Any], Any]:
        return lambda written: method(written, *args, **how)

    for form, rest, how in [
        ("alone", (), {}),
        ("op", (op,), {}),
        ("op, timeout", (op, MINUTE), {}),
        ("names", (), {"op": op, "timeout": MINUTE}),
    ]:
        yield f"allreduce {form}", mine(), on(group.allreduce, *rest, **how)
        yield f"allreduce {form} in a list", mine(), on(lambda t, *a, **k: group.allreduce([t], *a, **k), *rest, **how)
        yield f"reduce_scatter {form}", mine(), on(group.reduce_scatter, blocks(size), *rest, **how)
    as_max = options(dist.AllreduceOptions, reduceOp=op)
    yield "allreduce tensors=, opts=", mine(), lambda t: group.allreduce(tensors=[t], opts=as_max)
    yield "allreduce tensor=", mine(), lambda t: group.allreduce(tensor=t)
    yield "allreduce_coalesced", [mine(), mine(3)], group.allreduce_coalesced
    for rest, how in [((1,), {}), ((1, MINUTE), {}), ((), {"root": 1}), ((), {"root": 1, "timeout": MINUTE})]:
        form = f"{rest} {sorted(how)}"
        yield f"broadcast {form}", mine(), on(group.broadcast, *rest, **how)
        yield f"gather {form}", blocks(size) if root else [], on(group.gather, mine(), *rest, **how)
        yield f"scatter {form}", mine(), on(group.scatter, blocks(size) if root else [], *rest, **how)
    yield "broadcast opts", mine(), lambda t: group.broadcast([t], options(dist.BroadcastOptions, rootRank=1))
    reduced = mine()
    yield "reduce", reduced if root else [], lambda _: group.reduce(reduced, 1, op, timeout=MINUTE)
    for rest in ((), (MINUTE,)):
        yield f"allgather {rest}", blocks(size), on(group.allgather, mine(), *rest)
        yield f"alltoall_base {rest}", mine(), on(group.alltoall_base, mine(), [], [], *rest)
    yield "allgather names", blocks(size), lambda t: group.allgather(output_tensors=[t], input_tensors=[mine()])
    yield "_allgather_base", mine(4 * size), on(group._allgather_base, mine())
    yield "_reduce_scatter_base", mine(2), on(group._reduce_scatter_base, mine(2 * size), for_max)
    names = "_reduce_scatter_base names"
    yield names, mine(2), lambda t: group._reduce_scatter_base(outputTensor=t, inputTensor=mine(2 * size))
    yield "allgather_coalesced", blocks(size), lambda t: group.allgather_coalesced([[one] for one in t], [mine()])
    yield "barrier", [], lambda _: group.barrier()
    yield "barrier timeout", [], lambda _: group.barrier(MINUTE)
    yield "barrier timeout=", [], lambda _: group.barrier(timeout=MINUTE)
    yield "barrier opts", [], lambda _: group.barrier(dist.BarrierOptions())


def test_forms_of_the_methods_of_groups(ranks: TorchRanks) -> None:
    def work() -> dict[str, Any]:
        found = {}
        for form, written, call in forms(dist.group.WORLD, dist.get_rank(), dist.get_world_size()):
            assert call(written).wait() is True, form
            found[form] = [tensor.tolist() for tensor in (written if isinstance(written, list) else [written])]
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
