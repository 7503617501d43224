"""Tensors in shared memory on some ranks and private on others: all ranks stage the call."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

import unisono
from tests.support.matrix import Case, ops
from tests.support.matrix_driver import begin
from tests.support.on_ranks import in_world
from tests.support.worlds import Worlds

COUNT = 6000


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    """worlds(p): ranks of this file's own. How often they disagree depends on where their heaps have room for lists."""
    with ExitStack() as stack:
        made = {ranks: stack.enter_context(unisono.World(ranks, timeout_s=60)) for ranks in (2, 3)}
        yield made.__getitem__


FORMS = ["all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single", "all_to_all_single"]


def start(form: str, shared: bool, count: int = COUNT, **how: Any) -> Callable[[], str]:
    """Make a call with tensors in shared memory or not. Returns what waits for its end, and says what is wrong."""
    case = Case(form, "float32", ops(form, "float32")[0], count, shared=shared, root=1, exact=True)
    case = replace(case, async_op=how.get("async_op", False))
    me, size = unisono.get_rank(), unisono.get_world_size()
    return begin(case, me, size, lambda given: getattr(unisono, form)(*given, **how))


@pytest.mark.sampled
@pytest.mark.parametrize("form", FORMS)
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
        calls = [start(form, shared, async_op=True) for _ in range(4) for form in FORMS]
        calls += [start(form, shared) for form in FORMS]
        assert not any(finish() for finish in calls)
        return unisono.init().engine.call_number

    numbers = worlds(3).run(work)
    assert numbers == numbers[:1] * 3
