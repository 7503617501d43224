"""Tensors in shared memory on some ranks and private on others: the call runs staged, in step on all ranks."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import unisono
from tests.support.matrix import Case, ops
from tests.support.matrix_driver import begin
from tests.support.on_ranks import in_world
from tests.support.waiting import until
from tests.support.worlds import Worlds
from unisono.calls.dispatch.plan_cache import forget_plans
from unisono.calls.dispatch.retry_rules import StagedCalls

COUNT = 6000


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    """worlds(p): ranks of this file's own. How often they disagree depends on where their heaps have room for lists."""
    with ExitStack() as stack:
        made = {ranks: stack.enter_context(unisono.World(ranks, timeout_s=60)) for ranks in (2, 3)}
        yield made.__getitem__


FORMS = ["all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single", "all_to_all_single"]


def start(form: str, shared: bool, **how: Any) -> Callable[[], str]:
    """Make a call with tensors in shared memory or not. Returns what waits for its end, and says what is wrong."""
    case = Case(form, "float32", ops(form, "float32")[0], COUNT, shared=shared, root=1, exact=True)
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
        plans = [plan for known in group.shortcuts.values() for plan, _ in known.plans.values()]
        seen.append([str(plan.record.lowering) for plan in plans if plan.record.counts == (COUNT,)])
    assert seen == [["zero copy, in place"], []]


def test_the_order_of_foreground_and_background_calls_does_not_matter(worlds: Worlds) -> None:
    """Calls planned before an earlier one was found not to match run staged, too, or are made again."""

    def work() -> int:
        unisono.init().kept.pop(StagedCalls, None)
        shared = unisono.get_rank() > 0
        calls = [start(form, shared, async_op=True) for _ in range(4) for form in FORMS]
        calls += [start(form, shared) for form in FORMS]
        assert not any(finish() for finish in calls)
        return unisono.init().host.call_number

    numbers = worlds(3).run(work)
    assert numbers == numbers[:1] * 3


@pytest.mark.ranks(2)
def test_a_list_on_one_rank_and_one_tensor_on_another() -> None:
    for _ in range(3):
        assert not start("reduce_scatter" if unisono.get_rank() else "reduce_scatter_single", True)()


@in_world(3, all_give=True)
def test_a_rank_that_comes_late_is_waited_for(tmp_path: Path) -> bool:
    """Ranks 0 and 1 disagree. They wait for rank 2 longer than for calls that nothing can cure: until it comes, and
    then until it has told its call, which takes as long, as if another thread of it kept the interpreter.
    """
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
