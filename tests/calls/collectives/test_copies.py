"""Calls that work on copies: of tensors that are not plain, of private ones where other ranks share theirs, and with
`keep_inputs` of all in place.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

import unisono
from tests.support.matrix import Case, ops
from tests.support.matrix_driver import begin
from tests.support.on_ranks import in_world
from tests.support.waiting import until
from tests.support.worlds import Worlds
from unisono.calls.dispatch import step
from unisono.calls.dispatch.plan_cache import forget_plans
from unisono.calls.dispatch.retry_rules import StagedCalls

COUNT = 1_001
RANKS = 4


@pytest.fixture(scope="module", params=[None, "3+1"])
def keeping(request: pytest.FixtureRequest) -> Iterator[unisono.World]:
    """Ranks that keep their inputs, on one host and on two."""
    config = unisono.Config(keep_inputs=1)
    with unisono.World(RANKS, hosts=request.param, config=config, timeout_s=90) as world:
        yield world


def values(rank: int, turn: int) -> torch.Tensor:
    return ((torch.arange(COUNT) * 3 + 7 * rank + turn) % 31).to(torch.float64)


def total(turn: int) -> torch.Tensor:
    return torch.stack([values(rank, turn) for rank in range(RANKS)]).sum(0)


def work() -> None:
    me = unisono.get_rank()
    for turn in range(3):  # what was planned for one call is used by later ones
        parts = [*values(me, turn).split(100)]
        parts = [part.clone() for part in parts]
        unisono.all_reduce_coalesced(parts)
        assert torch.equal(torch.cat(parts), total(turn))
        turned = values(me, turn).repeat(2, 1).t()
        works = [unisono.all_reduce(turned, async_op=True) for _ in range(3)]
        for one in works:
            one.wait()
        assert torch.equal(turned, (total(turn) * RANKS**2).repeat(2, 1).t())
        tensor = values(me, turn)
        works = [unisono.all_reduce(tensor, async_op=True) for _ in range(3)]
        works[-1].wait()
        assert torch.equal(tensor, total(turn) * RANKS**2)
        unisono.broadcast(tensor.copy_(values(me, turn)), 1)
        assert torch.equal(tensor, values(1, turn))


def test_each_call_takes_the_values_of_its_own_time(keeping: unisono.World) -> None:
    keeping.run(work)


def test_calls_in_the_background_on_a_tensor_that_is_not_contiguous(worlds: Callable[[int], unisono.World]) -> None:
    worlds(RANKS).run(work)


ELEMENTS = 300_000


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.ranks(3)
def test_only_the_first_call_is_planned(shared: bool, async_op: bool) -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    group = unisono.new_group(range(size))  # the world's may ask for sizes, after other tests
    make = unisono.empty if shared else torch.empty
    planned = []
    for again in range(3):
        whole = make(size * ELEMENTS)  # elsewhere than the one before, which still lives
        parts = list(whole.view(size, ELEMENTS))
        parts[me].fill_(10 * again + me)
        with patch.object(step, "make_plan", wraps=step.make_plan) as plan:
            pending: Any = unisono.all_gather_single(whole, parts[me], group, async_op)
            assert pending is None or pending.wait()
            assert [part.unique().tolist() for part in parts] == [[10 * again + rank] for rank in range(size)]
            whole += me
            pending = unisono.reduce_scatter_single(parts[me], whole, group=group, async_op=async_op)
            assert pending is None or pending.wait()
        assert parts[me].unique().tolist() == [size * (10 * again + me) + sum(range(size))]
        planned.append(plan.call_count)
        unisono.barrier()
    assert planned == [2, 0, 0]


@pytest.mark.ranks(3)
def test_calls_where_new_tensors_have_no_memory() -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    last, right, left = size - 1, (me + 1) % size, (me - 1) % size
    mine, total = torch.full((4,), 1.0 + me), size * (size + 1) / 2
    blocks = [torch.full((n + 1,), float(10 * me + n)) for n in range(size)]  # of different sizes
    taken = [float(10 * n + me) for n in range(size) for _ in range(me + 1)]
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(me)
    factor = torch.tensor([2.0 + me], requires_grad=True)
    byte = torch.tensor([me], dtype=torch.uint8)
    with torch.device("meta"):
        assert torch.empty(1).is_meta
        unisono.all_reduce(mine)
        uneven = unisono.all_to_all(None, blocks)
        again = unisono.all_to_all(None, blocks)
        parts = unisono.gather(blocks[me], None, last)
        summed = unisono.reduce_scatter(None, [block.clone() for block in blocks])
        folded = unisono.all_gather(None, byte)
        unisono.barrier()
        objects: list[object] = [None] * size
        unisono.all_gather_object(objects, {"rank": me})
        pending = unisono.isend(mine, right)
        received = unisono.recv(None, left)
        pending.wait()
        unisono.send_object_list([me, "words"], right)
        news: list[object] = [None, None]
        unisono.recv_object_list(news, left)
        half = unisono.new_group([0, last])
        if me in (0, last):
            unisono.all_reduce(byte, group=half)
        unisono.broadcast_module(model, last)
        unisono.autograd.all_reduce(3 * factor).backward()
    assert mine.tolist() == [total] * 4
    for got in (uneven, again):
        assert torch.cat(got).tolist() == taken
    assert me != last or [part.numel() for part in parts] == [n + 1 for n in range(size)]
    assert summed.tolist() == [float(sum(10 * n + me for n in range(size)))] * (me + 1)
    assert torch.cat(folded).tolist() == list(range(size))
    assert objects == [{"rank": n} for n in range(size)]
    assert received.tolist() == [total] * 4
    assert news == [left, "words"]
    assert byte.item() == (last if me in (0, last) else me)
    assert model.weight.tolist() == [[last, last]]
    assert factor.grad.tolist() == [3.0 * size]


LONG = 6000


@pytest.fixture(scope="module")
def own_worlds() -> Iterator[Worlds]:
    """own_worlds(p): ranks that other files do not have. How often they disagree depends on the room in their heaps."""
    with ExitStack() as stack:
        made = {ranks: stack.enter_context(unisono.World(ranks, timeout_s=60)) for ranks in (2, 3)}
        yield made.__getitem__


FORMS = ["all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single", "all_to_all_single"]


def start(form: str, shared: bool, **how: Any) -> Callable[[], str]:
    """Make a call with tensors in shared memory or not. Returns what waits for its end, and says what is wrong."""
    case = Case(form, "float32", ops(form, "float32")[0], LONG, shared=shared, root=1, exact=True)
    case = replace(case, async_op=how.get("async_op", False))
    me, size = unisono.get_rank(), unisono.get_world_size()
    return begin(case, me, size, lambda given: getattr(unisono, form)(*given, **how))


def often(form: str, odd: int, times: int, **how: Any) -> int:
    """Make the call again and again, in shared memory on the odd rank; return how many calls the group has made."""
    group = unisono.init()
    before = group.host.call_number
    for _ in range(times):
        assert not start(form, group.rank == odd, **how)()
    return group.host.call_number - before


@pytest.mark.sampled
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", [{}, {"async_op": True}, {"algorithm": None, "timeout_s": 30}], ids=str)
@pytest.mark.parametrize(("ranks", "odd"), [(2, 1), (3, 0)])
@in_world("ranks", all_give=[2, 17, 30])
def test_right_values_and_few_disagreements(ranks: int, odd: int, how: dict[str, Any], form: str) -> list[int]:
    """One disagreement, then sixteen calls without; after the next, thirty-two."""
    unisono.init().kept.pop(StagedCalls, None)
    counts = [often(form, odd, times, **how) for times in (1, 16, 30)]
    unisono.barrier()
    return counts


@pytest.mark.ranks(2)
def test_once_all_ranks_share_again_nothing_is_staged() -> None:
    group, seen = unisono.init(), []
    group.kept.pop(StagedCalls, None)
    forget_plans(group)  # those of other tests, on the world that all share
    for _ in range(2):
        often("all_reduce", 0, 16)
        for _ in range(3):
            assert not start("all_reduce", True)()
        seen.append([str(plan.record.lowering) for key, plan in group.shortcuts.items() if key[2] == LONG])
    assert seen == [["zero copy, in place"], []]


def test_the_order_of_foreground_and_background_calls_does_not_matter(own_worlds: Worlds) -> None:
    """Calls planned before an earlier one was found not to match run staged, too, or are made again."""

    def work() -> int:
        unisono.init().kept.pop(StagedCalls, None)
        shared = unisono.get_rank() > 0
        calls = [start(form, shared, async_op=True) for _ in range(4) for form in FORMS]
        calls += [start(form, shared) for form in FORMS]
        assert not any(finish() for finish in calls)
        return unisono.init().host.call_number

    numbers = own_worlds(3).run(work)
    assert numbers == numbers[:1] * 3


@pytest.mark.ranks(2)
def test_a_list_on_one_rank_and_one_tensor_on_another() -> None:
    for _ in range(3):
        assert not start("reduce_scatter" if unisono.get_rank() else "reduce_scatter_single", True)()


def test_a_rank_that_comes_late_is_waited_for(own_worlds: Worlds, tmp_path: Path) -> None:
    """Ranks 0 and 1 disagree. They wait for rank 2 longer than for calls that nothing can cure: until it comes, and
    then until it has told its call, which takes as long, as if another thread of it kept the interpreter.
    """

    def work() -> bool:
        attend = import_module("unisono.ranks.failures.attend")
        look, knew_at, seen_at = attend.Watch.look, math.inf, math.inf
        group = unisono.new_group(range(3))

        def early(watch: Any, *more: Any) -> None:
            nonlocal knew_at, seen_at
            look(watch, *more)
            knew_at = min(knew_at, time.monotonic() if len(watch.known_calls()) == 2 else math.inf)
            if time.monotonic() > knew_at + attend._COLLECT_S:
                (tmp_path / f"{group.rank} waits").touch()
            seen_at = min(seen_at, time.monotonic() if watch.host.entered(2) >= watch.number else math.inf)
            if time.monotonic() > seen_at + attend._COLLECT_S:
                (tmp_path / f"{group.rank} sees rank 2").touch()

        def late(watch: Any, *more: Any) -> None:
            until(lambda: len(list(tmp_path.glob("* sees rank 2"))) == 2)
            look(watch, *more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attend, "_COLLECT_S", 0.05)
            patch.setattr(attend.Watch, "look", late if group.rank == 2 else early)
            if group.rank == 2:
                until(lambda: len(list(tmp_path.glob("* waits"))) == 2)
            return not start("all_reduce", group.rank == 0, group=group)()

    assert all(own_worlds(3).run(work))
