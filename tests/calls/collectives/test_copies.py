"""Calls that work on copies: of tensors that are not plain, with `keep_inputs`, or private where others are shared."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import unisono
from tests.calls.collectives.test_exact import usual
from tests.fuzz.deaths import check as expect_scene
from tests.fuzz.fault_scene import Call, Fault, Scene
from tests.support.matrix import FORMS
from tests.support.matrix_driver import begin
from tests.support.on_ranks import in_new_world, in_world
from tests.support.worlds import Worlds

COUNT = 1_001
RANKS = 4


def values(rank: int, turn: int) -> torch.Tensor:
    return ((torch.arange(COUNT) * 3 + 7 * rank + turn) % 31).to(torch.float64)


def total(turn: int) -> torch.Tensor:
    return torch.stack([values(rank, turn) for rank in range(RANKS)]).sum(0)


def work() -> None:
    me = unisono.get_rank()
    for turn in range(3):  # what was planned for one call is used by later ones
        parts = [part.clone() for part in values(me, turn).split(100)]
        unisono.all_reduce_coalesced(parts)
        assert torch.equal(torch.cat(parts), total(turn))
        for lie in (lambda flat: flat, lambda flat: flat.repeat(2, 1).t()):
            tensor = lie(values(me, turn))
            works = [unisono.all_reduce(tensor, async_op=True) for _ in range(3)]
            works[-1].wait()
            assert torch.equal(tensor, lie(total(turn) * RANKS**2))
            unisono.broadcast(tensor.copy_(lie(values(me, turn))), 1)
            assert torch.equal(tensor, lie(values(1, turn)))


@pytest.mark.parametrize("hosts", [None, "3+1"])
@in_new_world(RANKS, hosts="hosts", config=unisono.Config(keep_inputs=1), timeout_s=90)
def test_each_call_takes_its_own_values(hosts: str | None) -> None:
    """Of ranks that keep their inputs."""
    work()


@pytest.mark.ranks(RANKS)
def test_background_calls_on_strided_tensors() -> None:
    work()


ELEMENTS = 300_000


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.ranks(3, hosts=["2x1", "2x2"])
def test_only_the_first_call_is_planned(shared: bool, async_op: bool) -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    group = unisono.new_group(range(size))  # the world's may ask for sizes, after other tests
    make = unisono.empty if shared else torch.empty
    planned = []
    for again in range(4):
        whole = make(size * ELEMENTS)  # elsewhere than the one before, which still lives
        parts = list(whole.view(size, ELEMENTS))
        parts[me].fill_(10 * again + me)
        pending: Any = unisono.all_gather_single(whole, parts[me], group, async_op)
        assert pending is None or pending.wait()
        assert [part.unique().tolist() for part in parts] == [[10 * again + rank] for rank in range(size)]
        whole += me
        pending = unisono.reduce_scatter_single(parts[me], whole, group=group, async_op=async_op)
        assert pending is None or pending.wait()
        assert parts[me].unique().tolist() == [size * (10 * again + me) + sum(range(size))]
        planned.append([*map(id, group.plans.values())])
        unisono.barrier()
    assert len(planned[0]) == 2
    assert planned == planned[:1] * 4


@pytest.mark.ranks(3)
def test_calls_where_new_tensors_have_no_memory() -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    last, right, left = size - 1, (me + 1) % size, (me - 1) % size

    def on_meta(call: Callable[..., Any], given: list[Any]) -> Any:
        with torch.device("meta"):
            return call(*given)

    for form, kinds in FORMS.items():
        for blocks in kinds * 2:
            case = usual(form, 4, blocks=blocks, root=last)
            assert not begin(case, me, size, partial(on_meta, getattr(unisono, form)))()
    mine, objects, news = torch.full((4,), 1.0 + me), [None] * size, [None, None]
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(me)
    model.weight.grad = torch.full((1, 2), float(me))
    with torch.device("meta"):
        assert torch.empty(1).is_meta
        unisono.barrier()
        unisono.all_gather_object(objects, {"rank": me})
        pending = unisono.isend(mine, right)
        received = unisono.recv(None, left)
        pending.wait()
        unisono.send_object_list([me, "words"], right)
        unisono.recv_object_list(news, left)
        half = unisono.new_group([0, last])
        if half:
            unisono.all_reduce(mine, group=half)
        unisono.broadcast_module(model, last)
        unisono.average_gradients(model)
        assert unisono.get_world_size(unisono.split(0)) == size
    assert objects == [{"rank": n} for n in range(size)]
    assert received.tolist() == [1.0 + left] * 4
    assert news == [left, "words"]
    assert mine.tolist() == [2.0 + last if half else 1.0 + me] * 4
    assert model.weight.tolist() == [[last, last]]
    assert model.weight.grad.tolist() == [[last / 2] * 2]


@pytest.mark.parametrize(
    "call",
    [
        Call("all_reduce", 100_000, algorithm="ring"),
        Call("all_reduce", 100_000, shared=True, algorithm="two_shot"),
        Call("all_reduce", 1 << 19, algorithm="ring"),
        Call("broadcast", 100_000, algorithm="chain"),
    ],
    ids=str,
)
def test_inputs_survive_a_death(call: Call) -> None:
    """Rank 1 dies within the call."""
    expect_scene(Scene("4", (call,), (Fault(1, "kill", 0, "row 3"),), keep_inputs=True))


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    """worlds(p): ranks of this file's own. How often they disagree depends on where their heaps have room for lists."""
    with ExitStack() as stack:
        made = {ranks: stack.enter_context(unisono.World(ranks, timeout_s=60)) for ranks in (2, 3)}
        yield made.__getitem__


MIXED = ["all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single", "all_to_all_single"]


def start(form: str, shared: bool, count: int = 6000, **how: Any) -> Callable[[], str]:
    """Make a call with tensors in shared memory or not. Returns what waits for its end, and says what is wrong."""
    case = usual(form, count, shared=shared, root=1, async_op=how.get("async_op", False))
    me, size = unisono.get_rank(), unisono.get_world_size()
    return begin(case, me, size, lambda given: getattr(unisono, form)(*given, **how))


@pytest.mark.sampled
@pytest.mark.parametrize("form", MIXED)
@pytest.mark.parametrize("how", [{}, {"async_op": True}, {"algorithm": None, "timeout_s": 30}], ids=str)
@pytest.mark.parametrize("count", [1500, 6000, 400_000])
@pytest.mark.parametrize(("ranks", "odd"), [(2, 1), (3, 0)])
@in_world("ranks", all_give=40)
def test_right_values_in_as_many_calls(ranks: int, odd: int, count: int, how: dict[str, Any], form: str) -> int:
    """Signature and payload share a line, or do not, or private tensors are read across memory."""
    group = unisono.init()
    before = group.engine.call_number
    for k in range(40):
        shared = (group.rank == odd) if k % 4 else k % 8 == 0
        assert not start(form, shared, count, **how)()
    return group.engine.call_number - before


def test_foreground_and_background_calls_mix(worlds: Worlds) -> None:
    """Each call is staged on all ranks, in its turn."""

    def work() -> int:
        shared = unisono.get_rank() > 0
        calls = [start(form, shared, async_op=True) for _ in range(4) for form in MIXED]
        calls += [start(form, shared) for form in MIXED]
        assert not any(finish() for finish in calls)
        return unisono.init().engine.call_number

    numbers = worlds(3).run(work)
    assert numbers == numbers[:1] * 3
