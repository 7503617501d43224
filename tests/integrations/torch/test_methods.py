"""Methods of groups, in all forms, also called wrongly: they do over our groups what they do over Gloo.

Under Gloo's name they are asked as PyTorch's `test_c10d_gloo.py`, which no wheel has, asks them.
"""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.integrations.torch.test_as_gloo import store
from tests.support.torch_ranks import TorchRanks, as_over_gloo, options

MINUTE = timedelta(minutes=1)


def mine(count: int = 4) -> torch.Tensor:
    return torch.arange(float(count)) + 100 * dist.get_rank()


def blocks(size: int) -> list[torch.Tensor]:
    return [mine() + 10 * rank for rank in range(size)]


def forms(group: Any, rank: int, size: int) -> Iterator[tuple[str, Any, Callable[[Any], Any]]]:
    """For each form: its name, what it writes into, and the call."""
    root, op, for_max = rank == 1, dist.ReduceOp.MAX, options(dist.ReduceScatterOptions, reduceOp=dist.ReduceOp.MAX)

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
    for kind, twice in product((dist.ReduceOp.SUM, dist.ReduceOp.MAX), (False, True)):  # rank 0 has one tensor twice
        given, one = options(dist.AllreduceCoalescedOptions, reduceOp=kind), mine()
        several = [one, mine(3), one if twice and not root else mine()]
        yield f"allreduce_coalesced {kind} twice: {twice}", several, on(group.allreduce_coalesced, given)
    for place, named in [((1,), {}), ((1, MINUTE), {}), ((), {"root": 1}), ((), {"root": 1, "timeout": MINUTE})]:
        form = f"{place} {sorted(named)}"
        yield f"broadcast {form}", mine(), on(group.broadcast, *place, **named)
        yield f"gather {form}", blocks(size) if root else [], on(group.gather, mine(), *place, **named)
        yield f"scatter {form}", mine(), on(group.scatter, blocks(size) if root else [], *place, **named)
    yield "broadcast opts", mine(), lambda t: group.broadcast([t], options(dist.BroadcastOptions, rootRank=1))
    reduced = mine()  # ranks other than the root have what Gloo leaves there
    yield "reduce timeout=", reduced if root else [], lambda _: group.reduce(reduced, 1, op, timeout=MINUTE)
    for rest in ((), (MINUTE,)):
        yield f"allgather {rest}", blocks(size), on(group.allgather, mine(), *rest)
        yield f"alltoall_base {rest}", mine(), on(group.alltoall_base, mine(), [], [], *rest)
    yield "allgather names", blocks(size), lambda t: group.allgather(output_tensors=[t], input_tensors=[mine()])
    yield "_allgather_base", mine(4 * size), on(group._allgather_base, mine())
    yield "_reduce_scatter_base", mine(2), on(group._reduce_scatter_base, mine(2 * size), for_max)
    names = "_reduce_scatter_base names"
    yield names, mine(2), lambda t: group._reduce_scatter_base(outputTensor=t, inputTensor=mine(2 * size))
    yield "allgather_coalesced", blocks(size), lambda t: group.allgather_coalesced([[one] for one in t], [mine()])
    there, from_1 = {"tensors": [mine()], "dstRank": 0, "tag": 3}, {"srcRank": 1, "tag": 3}
    end: Any = [] if root else mine()
    yield "message", end, lambda t: group.send(**there) if root else group.recv(tensors=[t], **from_1)
    sparse = torch.sparse_coo_tensor([[rank, 0]], [1.0, 2.0], (size + 1,)).coalesce()
    yield "sparse", sparse, lambda t: group.allreduce([t])
    yield "empty", torch.empty(0), lambda t: group.broadcast([t])
    yield "barrier after others", blocks(16), lambda ts: [group.allreduce(t) for t in ts] and group.barrier()
    yield "barrier", [], lambda _: group.barrier()
    yield "barrier timeout", [], lambda _: group.barrier(MINUTE)
    yield "barrier timeout=", [], lambda _: group.barrier(timeout=MINUTE)
    yield "barrier opts", [], lambda _: group.barrier(dist.BarrierOptions())


@as_over_gloo(2, "unisono", "gloo")
def test_forms_of_the_methods_of_groups() -> list[Any]:
    found = []
    for form, written, call in forms(dist.group.WORLD, dist.get_rank(), dist.get_world_size()):
        assert call(written).wait() is True, form
        tensors = written if isinstance(written, list) else [written]
        found.append([form, [tensor.to_dense().tolist() for tensor in tensors]])
    return found


DOES_MORE = {"broadcast tensor -1", "broadcast tensor 1", "coalesced dtypes"}  # what Gloo refuses and these groups do


def wrong(group: Any) -> dict[str, Callable[[], Any]]:
    """Calls with an argument that no group takes, and some that these groups take, but not Gloo."""
    rank, size = dist.get_rank(), dist.get_world_size()
    one, double, two = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)
    sparse, longer = (torch.sparse_coo_tensor([[0]], [1.0], (size,)) for size in (2, 4))

    def of(name: str, *args: Any, **fields: Any) -> Callable[[], Any]:
        kind = {"reduce": dist.ReduceOptions, "scatter": dist.ScatterOptions, "gather": dist.GatherOptions}
        given = options(kind.get(name, dist.BroadcastOptions), **{"rootRank": 0} | fields)
        return lambda: getattr(group, name)(*args, given)

    bad: dict[str, Callable[[], Any]] = {}
    for root in (-1, size):
        bad[f"broadcast {root}"] = of("broadcast", [one], rootRank=root)
        bad[f"reduce {root}"] = of("reduce", [one], rootRank=root)
        bad[f"scatter {root}"] = of("scatter", [one], [], rootRank=root)
        bad[f"gather {root}"] = of("gather", [], [one], rootRank=root)
    for at in (-1, 1):
        bad[f"broadcast tensor {at}"] = of("broadcast", [one], rootTensor=at)
    for name, pair in {"dtypes": [one, double], "sizes": [one, two], "layouts": [one, sparse]}.items():
        bad[f"broadcast {name}"] = of("broadcast", pair)
        bad[f"allreduce {name}"] = lambda pair=pair: group.allreduce(pair, dist.AllreduceOptions())
        bad[f"allgather {name}"] = lambda pair=pair: group.allgather([[one, one] * size] * 2, pair)
    for name, given in {
        "none": [],
        "two": [[one] * size] * 2,
        "long": [[one] * (size + 1)],
        "sizes": [[two] * size],
    }.items():
        bad[f"scatter {name}"] = of("scatter", [one], given, rootRank=rank)
        bad[f"gather {name}"] = of("gather", given, [one], rootRank=rank)
    away = (rank + 1) % size
    bad |= {
        "scatter at no root": of("scatter", [one], [[one] * size], rootRank=away),
        "gather at no root": of("gather", [[one] * size], [one], rootRank=away),
        "broadcast nothing": of("broadcast", []),
        "reduce two": of("reduce", [one, one]),
        "scatter nowhere": of("scatter", [], []),
        "gather nothing": of("gather", [], []),
        "allreduce nothing": lambda: group.allreduce([], dist.AllreduceOptions()),
        "coalesced nothing": lambda: group.allreduce_coalesced([], dist.AllreduceCoalescedOptions()),
        "coalesced dtypes": lambda: group.allreduce_coalesced([one, double], dist.AllreduceCoalescedOptions()),
        "coalesced sparse": lambda: group.allreduce_coalesced([sparse] * 2, dist.AllreduceCoalescedOptions()),
        "sparse sizes": lambda: group.allreduce([sparse, longer], dist.AllreduceOptions()),
        "sparse max": lambda: group.allreduce(sparse, dist.ReduceOp.MAX),
        "coalesced short lists": lambda: group.allgather_coalesced([[one]], [one]),
        "coalesced short rows": lambda: group.allgather_coalesced([[one]] * size, [one, one]),
        "allgather nothing": lambda: group.allgather([], []),
        "allgather nowhere": lambda: group.allgather([], [one]),
        "allgather twice": lambda: group.allgather([[one] * size] * 2, [one]),
        "allgather output sizes": lambda: group.allgather([[one, two, one]], [one]),
        "bits of floats": lambda: group.allreduce(one, dist.ReduceOp.BAND),
    }
    return bad


def test_wrong_calls_are_errors_as_over_gloo(ranks: TorchRanks) -> None:
    """After them the group is as good as before. The words are those that torch's tests look for."""

    def work() -> dict[str, str]:
        said = dict[str, str]()
        group: Any = dist.ProcessGroupGloo(store("wrong"), dist.get_rank(), dist.get_world_size(), MINUTE)
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
