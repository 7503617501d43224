"""torch's hooks: the same program sees the same events over Gloo, over our groups, and over ours under Gloo's name."""

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from tests.integrations.torch.test_as_gloo import by_hand
from tests.support.torch_ranks import as_over_gloo, in_process_group

c10d: Any = torch._C._distributed_c10d
pytestmark = [
    pytest.mark.skipif(not hasattr(c10d, "PreHookArgs"), reason="groups have hooks from torch 2.14 on"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

Events = list[Any]
SIZES = [1, 2, 3]
HOOK = 7


def watch(group: Any) -> Events:
    """Register hooks that note their arguments."""
    seen: Events = []

    def before(args: Any) -> None:
        shapes = [[tuple(tensor.shape) for tensor in some] for some in (args.input_tensors, args.output_tensors)]
        seen.append(("before", args.name.name, args.async_op, *shapes, args.root, args.op_id))

    def after(args: Any) -> None:
        seen.append(("after", args.name.name, args.async_op, args.op_id))

    group.register_pre_hook(HOOK, before)
    group.register_post_hook(hook_id=HOOK, hook=after)
    return seen


def both_events(call: Callable[..., Any], *args: Any) -> None:
    """Make the call, blocking and asynchronous."""
    call(*args, async_op=False)
    call(*args, async_op=True).wait()


def collectives(group: Any) -> None:
    me, size = group.rank(), group.size()
    mine = torch.ones(size, 2)
    flat, rows = mine.flatten(), lambda: [torch.zeros(size, 2) for _ in range(size)]
    both_events(dist.all_reduce, mine)
    both_events(dist.broadcast, mine, size - 1)
    both_events(dist.reduce, mine, 0)
    both_events(dist.all_gather, rows(), mine)
    both_events(dist.all_gather_into_tensor, torch.zeros(size * size, 2), mine)
    both_events(dist.gather, mine, rows() if me == 0 else None, 0)
    both_events(dist.scatter, mine, rows() if me == size - 1 else None, size - 1)
    both_events(dist.reduce_scatter, mine, rows())
    both_events(dist.reduce_scatter_tensor, torch.zeros(2), flat)
    both_events(dist.all_to_all, rows(), rows())
    both_events(lambda **how: dist.all_to_all_single(torch.zeros(2 * size), flat, **how))
    both_events(lambda **how: dist.barrier(**how))
    both_events(dist.all_reduce_coalesced, [mine, flat])
    pairs = [[mine.clone(), flat.clone()] for _ in range(size)]
    both_events(dist.all_gather_coalesced, pairs, [mine, flat])
    dist.all_reduce(torch.eye(size).to_sparse())
    dist.monitored_barrier()  # no hook sees it


def messages(group: Any) -> None:
    me, size = group.rank(), group.size()
    there, back = (me + 1) % size, (me - 1) % size
    mine, theirs = torch.ones(3), torch.zeros(2, 3)
    ends = [dist.P2POp(dist.isend, mine, there), dist.P2POp(dist.irecv, theirs[0], back)]
    if size > 1:
        for work in dist.batch_isend_irecv(ends):
            work.wait()
        if me == 0:
            dist.send(mine, 1)
            group.send([mine], 1, 5).wait()
            dist.isend(mine, 1).wait()
        elif me == 1:
            dist.recv(theirs[0], 0)
            group.recv([theirs[1]], 0, 5).wait()
            dist.recv(theirs[1])
    objects = [None] * size
    dist.all_gather_object(objects, {"of": "one size"})
    dist.broadcast_object_list([me], 0)


def from_cpp(group: Any) -> None:
    """Calls that C++ code makes: functional collectives, coalesced ones, DistributedDataParallel."""
    import torch.distributed._functional_collectives as functional

    size, mine = group.size(), torch.ones(group.size(), 2)
    functional.all_reduce(mine, "sum", group).sum()
    functional.all_gather_tensor(mine, 0, group).sum()
    functional.reduce_scatter_tensor(mine, "sum", 0, group).sum()
    functional.all_to_all_single(mine, None, None, group).sum()
    for made in functional.all_gather_into_tensor_coalesced([mine, mine], group):
        made.sum()
    for call in (
        lambda: dist.all_reduce(mine.clone()),
        lambda: dist.all_gather_into_tensor(torch.zeros(size * size, 2), mine),
        lambda: dist.reduce_scatter_tensor(torch.zeros(1, 2), mine),
    ):
        with dist._coalescing_manager(async_ops=True) as together:
            call()
            call()
        together.wait()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()


PROGRAMS = [collectives, messages, from_cpp]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("program", PROGRAMS)
@as_over_gloo("size", "unisono", "gloo")
def test_events_are_those_of_gloo(size: int, program: Callable[[Any], None]) -> Events:
    group: Any = dist.group.WORLD
    events = watch(group)
    program(group)
    group.unregister_pre_hook(HOOK)
    dist.all_reduce(torch.ones(1))  # the hook after it is left
    group.unregister_post_hook(HOOK)
    dist.all_reduce(torch.ones(1))
    assert events[-1][0] == "after"
    return events


@pytest.mark.parametrize("backend", ["unisono", "gloo"])
@in_process_group(2, "backend", named=range(2))
def test_hooks_get_our_works(backend: str) -> None:
    works: list[Any] = []
    group: Any = dist.group.WORLD
    group.register_post_hook(HOOK, lambda args: works.append(args.work))
    mine = [torch.ones(3) for _ in range(3)]
    made = [dist.all_reduce(tensor, async_op=True) for tensor in mine]
    made.append(group.alltoall_base(torch.zeros(2), torch.ones(2), [], []))  # by its earlier name
    assert all(one is other for one, other in zip(works, made, strict=True))
    for work in works:
        work.wait()
        assert work.is_completed()
        assert work.is_success()
    dist.all_reduce(mine[0])
    assert works[-1].is_completed()
    assert mine[0].tolist() == [4.0] * 3


@pytest.mark.parametrize("backend", ["unisono", "gloo"])
@in_process_group(2, "backend", named=range(2))
def test_errors_of_calls_with_hooks(backend: str) -> None:
    tensor, wrong, seen = torch.ones(3), torch.ones(3 + dist.get_rank()), watch(dist.group.WORLD)
    with pytest.raises(dist.DistBackendError, match="the ranks disagree"):
        dist.all_reduce(wrong)
    work = dist.all_reduce(wrong, async_op=True)
    with pytest.raises(dist.DistBackendError, match="the ranks disagree"):
        work.wait()
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3
    assert seen[-1][0] == "after"


@pytest.mark.ranks(2, backend="unisono")
def test_hook_that_makes_calls() -> None:
    world: Any = dist.group.WORLD
    other: Any = dist.new_group([0, 1])
    seen, inner = watch(other), Events()

    def call(args: Any) -> None:
        if not inner:
            inner.append(args.op_id)
            for group in (world, other):
                tensor = torch.ones(2)
                dist.all_reduce(tensor, group=group)
                inner.append(tensor.sum().item())

    for register in (world.register_pre_hook, world.register_post_hook):
        inner.clear()
        register(HOOK + 1, call)
        tensor = torch.full((2,), 5.0)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        assert work.result()[0] is tensor
        assert tensor.tolist() == [10.0, 10.0]
        assert inner[1:] == [4.0, 4.0]
        world.unregister_pre_hook(HOOK + 1)
    assert len(seen) == 4


@in_process_group(2, "gloo", named=range(2))
def test_calls_made_in_another_way_are_seen_once() -> None:
    group: Any = dist.group.WORLD
    seen = watch(group)
    whole = torch.arange(4.0)
    for async_op in (False, True):
        work = dist.all_to_all_single(whole, whole, async_op=async_op)  # on a copy of the input
        assert work is None or work.wait()
    dist.all_reduce(torch.ones(2, dtype=torch.complex32))  # by Gloo's own group
    name = "ALLTOALL_BASE" if hasattr(dist.distributed_c10d, "_maybe_attach_flight_recorder") else "ALLTOALL"  # 2.14
    assert [event[1] for event in seen] == 4 * [name] + 2 * ["ALLREDUCE"]
    assert whole.tolist() == [0.0, 1.0, 2.0, 3.0]


@in_process_group(2, "gloo", named=range(2))
def test_group_that_a_program_puts_together() -> None:
    group, _ = by_hand("together", dist.ProcessGroupGloo)
    seen, tensor = watch(group), torch.ones(2)
    group.allreduce([tensor]).wait()
    assert tensor.tolist() == [2.0, 2.0]
    assert [event[:2] for event in seen] == [("before", "ALLREDUCE"), ("after", "ALLREDUCE")]
    group.unregister_pre_hook(HOOK)
    group.unregister_post_hook(HOOK)
    group.allreduce([tensor]).wait()
    assert len(seen) == 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("attached", [True, False], ids=["attached", "by the environment"])
@as_over_gloo("size", "unisono", "gloo")
def test_nan_is_found(size: int, attached: bool) -> Events:
    with patch.dict(os.environ, {} if attached else {"TORCH_DIST_NAN_CHECK": "1"}):
        group: Any = dist.new_group(range(size))
    hook = c10d.NanCheckHook.attach(group) if attached else None
    me, bad, found = dist.get_rank(), torch.tensor([1.0, float("nan")]), Events()

    def tried(call: Callable[..., Any], *args: Any, **options: Any) -> None:
        try:
            if (work := call(*args, group=group, **options)) is not None:
                work.wait()
            found.append("made")
        except RuntimeError as error:
            found.append(str(error).splitlines()[0])

    tried(dist.all_reduce, bad.clone())
    tried(dist.all_reduce, bad.clone(), async_op=True)
    tried(dist.all_gather_into_tensor, torch.full((2 * size,), float("nan")), torch.ones(2))  # an output may be so
    if size > 1:
        tried(dist.isend, bad, (me + 1) % size)
    assert sum("NaN found in input tensor" in event for event in found) == (2 if size == 1 else 3)
    tried(dist.all_reduce, torch.ones(2))
    if hook is not None:
        hook.remove()
        tried(dist.all_reduce, bad.clone())
    return found
