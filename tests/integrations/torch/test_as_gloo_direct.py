"""Groups of the class ProcessGroupGloo, asked as PyTorch's `test_c10d_gloo.py`, which no wheel has, asks them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.support.torch_ranks import TorchRanks, options

OPS = dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.AVG
MANY = 100
DOES_MORE = ["broadcast tensor -1", "broadcast tensor 1", "coalesced dtypes"]  # what Gloo refuses and these groups do


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
    """What `test_direct` does not ask, as it is of Gloo's groups only."""
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


def test_calls_give_what_they_give_over_gloo(ranks: TorchRanks) -> None:
    def work() -> dict[str, Any]:
        return usual(made("direct"))

    theirs, ours = ranks(3, "gloo")(work), ranks(3, "gloo", named=range(3))(work)
    assert len(ours[0]) > 20
    for name in ours[0]:
        assert [found[name] for found in ours] == [found[name] for found in theirs], name


def test_wrong_calls_are_errors_as_over_gloo(ranks: TorchRanks) -> None:
    def work() -> list[str]:
        group, fine = made("wrong"), []
        calls = wrong(group)
        assert len(calls) > 40
        for name, call in calls.items():
            try:
                call().wait()
            except RuntimeError:
                continue
            fine.append(name)
        tensor = torch.tensor([10 ** dist.get_rank()])
        group.allreduce(tensor).wait()
        assert tensor.item() == 111
        return fine

    assert ranks(3, "gloo")(work) == [[]] * 3
    assert ranks(3, "gloo", named=range(3))(work) == [DOES_MORE] * 3
