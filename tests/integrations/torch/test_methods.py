"""Methods of groups, in all forms, also called wrongly: they do over our groups what they do over Gloo.

Under Gloo's name they are asked as PyTorch's `test_c10d_gloo.py`, which no wheel has, asks them.
"""

import re
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


@as_over_gloo(2, "unisono", "gloo")
def test_forms_of_the_methods_of_groups() -> list[Any]:
    found = []
    for form, written, call in forms(dist.group.WORLD, dist.get_rank(), dist.get_world_size()):
        assert call(written).wait() is True, form
        found.append([form, [tensor.tolist() for tensor in (written if isinstance(written, list) else [written])]])
    return found


OPS = dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.AVG
MANY = 100
DOES_MORE = {"broadcast tensor -1", "broadcast tensor 1", "coalesced dtypes"}  # what Gloo refuses and these groups do


def made(name: str) -> Any:
    """A group of all ranks, made by its class."""
    devices = [dist.ProcessGroupGloo.create_device(interface="lo") for _ in range(2)]
    given = options(dist.ProcessGroupGloo._Options, _timeout=timedelta(seconds=30), _threads=2, _devices=devices)
    where = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    return dist.ProcessGroupGloo(where, dist.get_rank(), dist.get_world_size(), given)


def values(works: list[Any]) -> list[Any]:
    """What the futures of works have, as lists."""
    futures = [work.get_future() for work in works]
    for future in futures:
        future.wait()
    return [[plain(item) for item in future.value()] for future in futures]


def plain(item: Any) -> Any:
    return [plain(each) for each in item] if isinstance(item, list) else item.to_dense().tolist()


def usual(group: Any) -> dict[str, Any]:
    """What is of Gloo's groups only."""
    rank, size, found = dist.get_rank(), dist.get_world_size(), dict[str, Any]()
    second = options(dist.BroadcastOptions, rootRank=size - 1, rootTensor=1)
    found["broadcast of two"] = values([group.broadcast([torch.tensor([rank]), torch.tensor([-rank])], second)])
    found["empty"] = values([group.broadcast([torch.empty(0)])])
    for op in OPS:
        opts = options(dist.AllreduceOptions, reduceOp=op)
        pair = [torch.tensor([rank + 5.0]), torch.tensor([rank + 6.0])]
        found[f"allreduce {op}"] = values([group.allreduce(pair if op != dist.ReduceOp.AVG else pair[:1], opts)])
        reduced = [group.reduce(pair[0].clone(), root, op).get_future().wait()[0].tolist() for root in range(size)]
        found[f"reduce {op}"] = reduced[rank]  # others have what Gloo leaves there
    found["many"] = values([group.allreduce(torch.tensor([rank + 1.0 + step])) for step in range(MANY)])
    found["coalesced"] = values([group.allreduce_coalesced(2 * [torch.tensor([step + rank])]) for step in range(5)])
    sparse = [torch.sparse_coo_tensor([[rank, 0]], [1.0, 2.0], (size + at,)).coalesce() for at in (1, 1)]
    found["sparse"] = values([group.allreduce([sparse[0].clone()]), group.allreduce([part.clone() for part in sparse])])
    for count in (1, 2, 3):
        outputs = [[torch.tensor([-1]) for _ in range(count * size)] for _ in range(count)]
        given = [torch.tensor([count * rank + at]) for at in range(count)]
        found[f"allgather of {count}"] = values([group.allgather(outputs, given)])
    with torch.inference_mode():
        twice = [[torch.zeros(1) for _ in range(2 * size)] for _ in range(2)]
        found["inference, several"] = values([group.allgather(twice, [torch.ones(1) + rank, torch.ones(1) - rank])])
    left = [torch.full((100,), float(step)) for step in range(16)]
    for tensor in left:
        group.allreduce(tensor)
    group.barrier().get_future().wait()
    found["a barrier waits for all calls before"] = plain([tensor[:1] for tensor in left])
    devices = [group.create_device(interface="lo"), group.create_default_device()]
    assert all(isinstance(device, group.Device) for device in devices)
    given = options(group._Options, _timeout=timedelta(seconds=30), _threads=2, _devices=devices)
    where = dist.PrefixStore("by its devices", dist.distributed_c10d._get_default_store())
    found["a group of its devices"] = values([dist.ProcessGroupGloo(where, rank, size, given).allreduce(torch.ones(1))])
    group._set_default_timeout(timedelta(seconds=23))
    found["timeout"] = group.options._timeout
    return found


def wrong(group: Any) -> dict[str, Callable[[], Any]]:
    """Calls with an argument that no group takes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    one, double, two = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)
    sparse, longer = (torch.sparse_coo_tensor([[0]], [1.0], (size,)) for size in (2, 4))
    at_home = {"rootRank": rank}
    bad: dict[str, Callable[[], Any]] = {}
    for root in (-1, size):
        bad |= {
            f"broadcast {root}": lambda root=root: group.broadcast(one, root),
            f"reduce {root}": lambda root=root: group.reduce(one, root, dist.ReduceOp.SUM),
            f"scatter {root}": lambda root=root: group.scatter([one], [], options(dist.ScatterOptions, rootRank=root)),
            f"gather {root}": lambda root=root: group.gather([], [one], options(dist.GatherOptions, rootRank=root)),
        }
    for at in (-1, 1):
        bad[f"broadcast tensor {at}"] = lambda at=at: group.broadcast(
            [one], options(dist.BroadcastOptions, rootRank=0, rootTensor=at)
        )
    for name, pair in {"dtypes": [one, double], "sizes": [one, two], "layouts": [one, sparse]}.items():
        bad |= {
            f"broadcast {name}": lambda pair=pair: group.broadcast(pair, options(dist.BroadcastOptions, rootRank=0)),
            f"allreduce {name}": lambda pair=pair: group.allreduce(pair, dist.AllreduceOptions()),
            f"allgather {name}": lambda pair=pair: group.allgather([[one, one] * size] * 2, pair),
        }
    bad |= {
        "broadcast nothing": lambda: group.broadcast([], options(dist.BroadcastOptions, rootRank=0)),
        "allreduce nothing": lambda: group.allreduce([], dist.AllreduceOptions()),
        "coalesced nothing": lambda: group.allreduce_coalesced([], dist.AllreduceCoalescedOptions()),
        "coalesced dtypes": lambda: group.allreduce_coalesced([one, double], dist.AllreduceCoalescedOptions()),
        "coalesced layouts": lambda: group.allreduce_coalesced([one, sparse], dist.AllreduceCoalescedOptions()),
        "coalesced sparse": lambda: group.allreduce_coalesced([sparse] * 2, dist.AllreduceCoalescedOptions()),
        "sparse sizes": lambda: group.allreduce([sparse, longer], dist.AllreduceOptions()),
        "sparse max": lambda: group.allreduce(sparse, dist.ReduceOp.MAX),
        "reduce two": lambda: group.reduce([one, one], options(dist.ReduceOptions, rootRank=0)),
        "coalesced short lists": lambda: group.allgather_coalesced([[one]], [one]),
        "coalesced short rows": lambda: group.allgather_coalesced([[one]] * size, [one, one]),
        "allgather nothing": lambda: group.allgather([], []),
        "allgather nowhere": lambda: group.allgather([], [one]),
        "allgather twice": lambda: group.allgather([[one] * size] * 2, [one]),
        "allgather output dtypes": lambda: group.allgather([[one, double, one]], [one]),
        "allgather output sizes": lambda: group.allgather([[one, two, one]], [one]),
        "bits of floats": lambda: group.allreduce(one, dist.ReduceOp.BAND),
        "scatter nowhere": lambda: group.scatter([], [], options(dist.ScatterOptions, rootRank=0)),
        "gather nothing": lambda: group.gather([], [], options(dist.GatherOptions, rootRank=0)),
    }
    lists = {
        "none": [],
        "two": [[one] * size] * 2,
        "short": [[one] * (size - 1)],
        "long": [[one] * (size + 1)],
        "dtypes": [[double] * size],
        "sizes": [[two] * size],
    }
    for name, given in lists.items():
        bad |= {
            f"scatter {name}": lambda given=given: group.scatter([one], given, options(dist.ScatterOptions, **at_home)),
            f"gather {name}": lambda given=given: group.gather(given, [one], options(dist.GatherOptions, **at_home)),
        }
    away = {"rootRank": (rank + 1) % size}
    bad["scatter at no root"] = lambda: group.scatter([one], [[one] * size], options(dist.ScatterOptions, **away))
    bad["gather at no root"] = lambda: group.gather([[one] * size], [one], options(dist.GatherOptions, **away))
    return bad


@as_over_gloo(3, "gloo")
def test_calls_give_what_they_give_over_gloo() -> list[Any]:
    return list(usual(made("direct")).items())


def test_wrong_calls_are_errors_as_over_gloo(ranks: TorchRanks) -> None:
    """After them the group is as good as before. The words are those that torch's tests look for."""

    def work() -> dict[str, str]:
        group, said = made("wrong"), dict[str, str]()
        for name, call in wrong(group).items():
            try:
                call().wait()
            except RuntimeError as error:
                said[name] = str(error)
        tensor = torch.tensor([10 ** dist.get_rank()])
        group.allreduce(tensor).wait()
        assert tensor.item() == 111
        return said

    for theirs, ours in zip(ranks(3, "gloo")(work), ranks(3, "gloo", named=range(3))(work), strict=True):
        assert theirs.keys() - ours.keys() == DOES_MORE
        for name in ours:
            words = re.search(r"invalid root rank: .*|requires (a single-element|non-empty) tensor list", theirs[name])
            assert words is None or words[0] in ours[name], name


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
