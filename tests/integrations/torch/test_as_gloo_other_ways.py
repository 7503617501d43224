"""Calls that our own groups refuse: under Gloo's name they do what they do over Gloo, in every kind of group."""

import logging
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.two_tensor import TwoTensor

import unisono
from tests.integrations.torch.test_as_gloo import said
from tests.support.torch_ranks import TorchRanks, in_process_group, options
from unisono.base.errors import ArgumentError, MismatchError, WaitTimeout

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


class Elsewhere(torch.Tensor):
    """A tensor of a device that this machine does not have, with its elements on the host."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device="lazy")
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        aten, mine = torch.ops.aten, args[0]
        if func is aten._to_copy.default:
            assert kwargs["device"].type == "cpu"
            return mine.held.clone()
        if func is aten.copy_.default:
            mine.held.copy_(args[1])
            return mine
        assert func in (aten.detach.default, aten.alias.default), func
        return cls(mine.held)


def numbers(seed: int, count: int) -> torch.Tensor:
    """Other ones on each rank, whose sums are exact."""
    return torch.randint(1, 9, (count,), generator=torch.Generator().manual_seed(100 * dist.get_rank() + seed)).float()


class Over:
    """One of the calls, in a group: over Gloo in the form that Gloo has of it, else in the form that is another way."""

    def __init__(self, seed: int, group: Any, *, async_op: bool, gloo: bool) -> None:
        self.seed, self.group, self.async_op, self.gloo = seed, group, async_op, gloo
        self.size, self.root = dist.get_world_size(group), seed % dist.get_world_size(group)
        self.is_root = dist.get_rank(group) == self.root

    def _end(self, work: Any) -> None:
        if self.async_op:
            assert work.wait()

    def usual(self) -> list[Any]:
        tensor = numbers(self.seed, 5)
        self._end(dist.all_reduce(tensor, group=self.group, async_op=self.async_op))
        return tensor.tolist()

    def elsewhere(self) -> list[Any]:
        out, mine = torch.zeros(3 * self.size), numbers(self.seed, 3)
        kept, rooted = mine.clone(), numbers(self.seed + 1, 4)
        pair: Any = (out, mine) if self.gloo else (Elsewhere(out), Elsewhere(mine))
        self._end(dist.all_gather_single(*pair, group=self.group, async_op=self.async_op))
        there: Any = rooted if self.gloo else Elsewhere(rooted)
        self._end(dist.broadcast(there, group=self.group, group_src=self.root, async_op=self.async_op))
        assert torch.equal(mine, kept)
        return out.tolist() + rooted.tolist()

    def elsewhere_on_one_rank(self) -> list[Any]:
        tensor = numbers(self.seed, 4)
        there: Any = Elsewhere(tensor) if self.is_root and not self.gloo else tensor
        self._end(dist.all_reduce(there, dist.ReduceOp.MAX, group=self.group, async_op=self.async_op))
        return tensor.tolist()

    def without_elements(self) -> list[Any]:
        meta = torch.empty(3, device="meta")
        self._end(dist.all_reduce(meta, group=self.group, async_op=self.async_op))
        self._end(dist.all_gather([meta] * self.size, meta, group=self.group, async_op=self.async_op))
        return [meta.device.type]

    def outputs_in_one_place(self) -> list[Any]:
        out, several = torch.zeros(3), torch.zeros(2)
        self._end(dist.all_gather([out] * self.size, numbers(self.seed, 3), group=self.group, async_op=self.async_op))
        places = [several] * self.size if self.is_root else None
        mine = numbers(self.seed, 2)
        self._end(dist.gather(mine, places, group=self.group, group_dst=self.root, async_op=self.async_op))
        rows = torch.zeros(self.size + 1)
        overlapping = [rows[rank : rank + 2] for rank in range(self.size)]
        given = [numbers(self.seed + rank, 2) for rank in range(self.size)]
        self._end(dist.all_to_all(overlapping, given, group=self.group, async_op=self.async_op))
        return out.tolist() + several.tolist() + rows.tolist()

    def several_tensors(self) -> list[Any]:
        pair = [numbers(self.seed, 3), numbers(self.seed + 1, 3)]
        op = random.Random(self.seed).choice([getattr(dist.ReduceOp, op) for op in ("SUM", "PRODUCT", "MIN", "MAX")])
        self.group.allreduce(pair, options(dist.AllreduceOptions, reduceOp=op, asyncOp=True)).wait()
        rows = [[torch.zeros(3) for _ in range(2 * self.size)] for _ in pair]
        rooted = [numbers(self.seed + 2, 3), numbers(self.seed + 3, 3)]
        from_second = options(dist.BroadcastOptions, rootRank=self.root, rootTensor=1, asyncOp=self.async_op)
        self.group.broadcast(rooted, from_second).wait()  # Gloo returns before it is over, whatever asyncOp says
        sparse = [numbers(self.seed + 4, 3).to_sparse(), numbers(self.seed + 5, 3).to_sparse()]
        self.group.allreduce(sparse).wait()
        with torch.inference_mode(self.async_op):
            future = self.group.allgather(rows, pair).get_future()
            future.wait()
        return [[tensor.to_dense().tolist() for tensor in some] for some in (pair, rooted, sparse, *future.value())]

    def complex32(self) -> list[Any]:
        kinds = [(torch.float16, torch.complex32)]
        if hasattr(torch, "bcomplex32"):
            kinds.append((torch.bfloat16, torch.bcomplex32))
        part_kind, kind = random.Random(self.seed).choice(kinds)

        def half(seed: int, count: int) -> torch.Tensor:
            return numbers(seed, 2 * count).to(part_kind).view(kind)

        tensor, part = half(self.seed, 3), half(self.seed, 2)
        self._end(dist.reduce(tensor, group=self.group, group_dst=self.root, async_op=self.async_op))
        whole = half(self.seed + 1, 2 * self.size)
        self._end(dist.reduce_scatter_single(part, whole, group=self.group, async_op=self.async_op))
        self._end(dist.reduce_scatter(part, [part.clone()] * self.size, group=self.group, async_op=self.async_op))
        return part.view(part_kind).tolist() + (tensor.view(part_kind).tolist() if self.is_root else [])

    def several_parts(self) -> list[Any]:
        parts = [numbers(self.seed, 4), numbers(self.seed + 1, 4)]
        # Over Gloo the work is that of one part only.
        for tensor in parts if self.gloo else [TwoTensor(*parts)]:
            self._end(dist.all_reduce(tensor, group=self.group, async_op=self.async_op))
        return [part.tolist() for part in parts]


KINDS = [name for name in vars(Over) if not name.startswith("_")]


def run(seeds: range, size: int, *, gloo: bool) -> list[Any]:
    """A random program: the same calls, in the same groups, on every rank."""
    draw, world = random.Random(seeds.start), dist.group.WORLD
    groups: list[Any] = [world, dist.new_group(range(size - 1)), dist.new_group(range(size - 1, -1, -2))]
    found = []
    for seed in seeds:
        name, group, async_op = draw.choice(KINDS), draw.choice(groups), draw.random() < 0.5
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            found.append((seed, name, getattr(Over(seed, group, async_op=async_op, gloo=gloo), name)()))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("size", "hosts"), [(2, ""), (4, ""), (3, "2+1")])
def test_random_programs(ranks: TorchRanks, seed: int, size: int, hosts: str) -> None:
    seeds = range(1000 * seed, 1000 * seed + 40)
    ours = ranks(size, "gloo", named=range(size), hosts=hosts)(lambda: run(seeds, size, gloo=False))
    assert ours == ranks(size, "gloo")(lambda: run(seeds, size, gloo=True))


def two(count: int) -> Any:
    return TwoTensor(torch.ones(count), torch.ones(count))


def many(name: str, *tensors: torch.Tensor, opts: Any = None) -> None:
    getattr(dist.group.WORLD, name)([*tensors], *([] if opts is None else [opts])).wait()


ONE, OVER = torch.ones(2), r"allreduce\(sum, float32\[2\], over Gloo\)"
SECOND = r"rank 1  broadcast\(.*root 0 tensor 1 over Gloo\)"
MISTAKES: list[tuple[Callable[[int], Any], type[BaseException], str]] = [
    (lambda me: dist.all_reduce(two(2) if me else ONE), MismatchError, f"rank 1  {OVER}"),
    (lambda me: dist.all_reduce(two(2 + me)), MismatchError, f"rank 0  {OVER}"),
    (lambda me: dist.broadcast(two(2), me), MismatchError, r"float32\[2\], root 1 over Gloo\)"),
    (lambda me: dist.barrier() if me else dist.all_reduce(two(2)), MismatchError, f"rank 0  {OVER}"),
    (lambda me: many("broadcast", ONE, ONE, opts=options(dist.BroadcastOptions, rootTensor=me)), MismatchError, SECOND),
    (lambda _: many("allreduce", ONE, ONE, opts=dist.ReduceOp.AVG), ArgumentError, "a single-element tensor list"),
    (lambda _: many("allreduce", ONE, torch.ones(3)), RuntimeError, "invalid tensor size"),
    (lambda me: dist.send(Elsewhere(ONE), 1 - me), ArgumentError, "has no elements of its own"),
    (lambda _: dist.all_gather([torch.nested.nested_tensor([ONE])] * 2, ONE), TypeError, "got a nested tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "match"), MISTAKES)
@in_process_group(2, "gloo", named=range(2))
def test_mistakes_are_told_on_all_ranks(call: Callable[[int], Any], error: type[BaseException], match: str) -> None:
    """After them the group is as good as before."""
    with pytest.raises(error, match=match):
        call(dist.get_rank())
    tensor = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(tensor)
    pair = [tensor, tensor.clone()]
    dist.group.WORLD.allreduce(pair).wait()
    assert (tensor.item(), pair[1].item()) == (12.0, 12.0)


@in_process_group(3, "gloo", named=range(3))
def test_refusal_of_gloo_reaches_all_ranks() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    for _ in range(2):
        places = [two(2 + (rank == 1)) for rank in range(size)] if me == 0 else None
        with pytest.raises(RuntimeError if me == 0 else MismatchError, match="gather: invalid tensor size"):
            dist.gather(two(2), places)
        mine = two(2)
        dist.all_reduce(mine)
        assert mine.a.tolist() == [float(size)] * 2


@in_process_group(2, "gloo", named=range(2))
def test_late_rank_is_named_before_gloo_is_called() -> None:
    soon = timedelta(seconds=0.3)
    if dist.get_rank() == 0:
        with pytest.raises(WaitTimeout) as caught:
            dist.group.WORLD.allreduce([torch.ones(2)] * 2, options(dist.AllreduceOptions, timeout=soon)).wait()
        assert caught.value.missing == (1,)
    unisono.barrier()


def test_each_way_is_said_once(tmp_path: Path) -> None:
    """A block that lies in its place needs none."""

    def work() -> list[str]:
        me, whole = dist.get_rank(), torch.ones(4)
        parts = list(whole.chunk(2))
        with said() as lines:
            dist.all_gather(parts, parts[me])
            dist.all_gather_single(whole, parts[me])
            dist.reduce_scatter(parts[me], parts)
            dist.reduce_scatter_single(parts[me], whole)
            dist.gather(parts[me], parts if me == 0 else None, 0)
            dist.scatter(parts[me], parts if me == 1 else None, 1)
            logging.getLogger("unisono").warning("from here on")
            for _ in range(3):
                dist.all_gather([torch.ones(2)] * 2, torch.ones(2))
                dist.all_reduce(two(2))
                dist.all_reduce(torch.ones(2))
        return lines

    with unisono.World(2) as new:
        assert TorchRanks(lambda _: new, tmp_path)(2, "gloo", named=range(2))(work) == 2 * [[
            "from here on",
            "allgather: outputs share memory, so only what is written last stays, as over Gloo. Said once",
            "allreduce: a TwoTensor passes calls on to its parts: such calls go to a group of Gloo's. Said once",
        ]]  # fmt: skip


INSIDE: list[tuple[Any, list[int], list[int]]] = [  # a call, and which parts of one tensor it gets
    (lambda out, into: dist.reduce_scatter(out[0], into), [0], [0, 0]),
    (lambda out, into: dist.reduce_scatter(out[0], into), [1], [1, 0]),
    (lambda out, into: dist.reduce_scatter_single(out[0], into[0]), [0], [3]),
    (lambda out, into: dist.all_gather(out, into[0]), [0, 1], [0]),
    (lambda out, into: dist.all_gather_single(out[0], into[0]), [3], [0]),
    (lambda out, into: dist.all_gather_single(out[0], into[0], async_op=True).wait(), [3], [1]),
    (lambda out, into: dist.gather(into[0], out if dist.get_rank() == 0 else None, 0), [0, 1], [1]),
    (lambda out, into: dist.scatter(out[0], into if dist.get_rank() == 1 else None, 1), [0], [0, 1]),
    (lambda out, into: dist.all_to_all(out, into), [0, 1], [0, 1]),
    (lambda out, into: dist.all_to_all(out, into, async_op=True).wait(), [2, 1], [1, 2]),
    (lambda out, into: dist.all_to_all_single(out[0], into[0]), [4], [4]),
]


@pytest.mark.parametrize(("call", "outputs", "inputs"), INSIDE)
@in_process_group(2, "gloo", named=range(2))
def test_overlapping_input_is_read_first(call: Any, outputs: list[int], inputs: list[int]) -> None:
    """The outputs are what they are for inputs in memory of their own."""
    found = []
    for apart in (False, True):
        whole = numbers(5, 6)
        parts = [*whole.split(2), whole[:4], whole]
        given = [part.clone() if apart else part for part in parts]
        call([parts[k] for k in outputs], [given[k] for k in inputs])
        found.append(whole.tolist())
    assert found[0] == found[1]
