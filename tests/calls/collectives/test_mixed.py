"""Tensors in shared memory on some ranks and private on others: the call runs staged, in step on all ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.support.waiting import until
from tests.support.worlds import Worlds

Make = Callable[..., torch.Tensor]
COUNT = 6000


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    """worlds(p): ranks of this file's own. How often they disagree depends on where their heaps have room for lists."""
    with ExitStack() as stack:
        made = {ranks: stack.enter_context(unisono.World(ranks, timeout_s=60)) for ranks in (2, 3)}
        yield made.__getitem__


def values(rank: int, count: int) -> torch.Tensor:
    return (torch.arange(count) * (rank + 3) % 251).float()


def total(count: int) -> torch.Tensor:
    return torch.stack([values(rank, count) for rank in range(unisono.get_world_size())]).sum(0)


def all_reduce(make: Make, **how: Any) -> Any:
    tensor = make(COUNT).copy_(values(unisono.get_rank(), COUNT))
    work = unisono.all_reduce(tensor, **how)
    return work, lambda: torch.equal(tensor, total(COUNT))


def broadcast(make: Make, **how: Any) -> Any:
    tensor = make(COUNT).copy_(values(unisono.get_rank(), COUNT))
    return unisono.broadcast(tensor, 1, **how), lambda: torch.equal(tensor, values(1, COUNT))


def all_gather(make: Make, **how: Any) -> Any:
    size = unisono.get_world_size()
    output, source = make(size * COUNT), make(COUNT).copy_(values(unisono.get_rank(), COUNT))
    work = unisono.all_gather_single(output, source, **how)
    return work, lambda: torch.equal(output, torch.cat([values(rank, COUNT) for rank in range(size)]))


def reduce_scatter(make: Make, **how: Any) -> Any:
    rank, size = unisono.get_rank(), unisono.get_world_size()
    output, source = make(COUNT), make(size * COUNT).copy_(values(rank, size * COUNT))
    work = unisono.reduce_scatter_single(output, source, **how)
    return work, lambda: torch.equal(output, total(size * COUNT).view(size, -1)[rank])


def all_to_all(make: Make, **how: Any) -> Any:
    rank, size = unisono.get_rank(), unisono.get_world_size()
    output, source = make(size * COUNT), make(size * COUNT).copy_(values(rank, size * COUNT))
    work = unisono.all_to_all_single(output, source, **how)
    blocks = [values(peer, size * COUNT).view(size, -1)[rank] for peer in range(size)]
    return work, lambda: torch.equal(output, torch.cat(blocks))


CALLS = [all_reduce, broadcast, all_gather, reduce_scatter, all_to_all]


def often(call: Callable[..., Any], odd: int, times: int, **how: Any) -> int:
    """Make the call again and again, in shared memory on the odd rank; return how many calls the group has made."""
    group = unisono.init()
    before = group.host.call_number
    for _ in range(times):
        work, right = call(unisono.empty if group.rank == odd else torch.empty, **how)
        if work is not None:
            work.wait()
        assert right()
    return group.host.call_number - before


@pytest.mark.sampled
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("how", [{}, {"async_op": True}, {"algorithm": None, "timeout_s": 30}], ids=str)
@pytest.mark.parametrize(("ranks", "odd"), [(2, 1), (3, 0)])
def test_right_values_and_few_disagreements(
    worlds: Worlds, ranks: int, odd: int, how: dict[str, Any], call: Callable[..., Any]
) -> None:
    """One disagreement, then sixteen calls without; after the next, thirty-two."""

    def work() -> list[int]:
        unisono.init().mixed.clear()
        counts = [often(call, odd, times, **how) for times in (1, 16, 30)]
        unisono.barrier()
        return counts

    assert worlds(ranks).run(work) == [[2, 17, 30]] * ranks


def test_once_all_ranks_share_again_nothing_is_staged(worlds: Worlds) -> None:
    def work() -> list[list[str]]:
        group, seen = unisono.init(), []
        group.mixed.clear()
        group.shortcuts.clear()  # those of other tests, on the world that all share
        for _ in range(2):
            often(all_reduce, 0, 16)
            for _ in range(3):
                _, right = all_reduce(unisono.empty)
                assert right()
            seen.append([str(plan.record.lowering) for key, plan in group.shortcuts.items() if key[2] == COUNT])
        return seen

    assert worlds(2).run(work) == [[["zero copy, in place"], []]] * 2


def test_the_order_of_foreground_and_background_calls_does_not_matter(worlds: Worlds) -> None:
    """Calls planned before an earlier one was found to be mixed run staged, too, or are made again."""

    def work() -> int:
        unisono.init().mixed.clear()
        make = unisono.empty if unisono.get_rank() else torch.empty
        calls = [call(make, async_op=True) for _ in range(4) for call in CALLS]
        calls += [call(make) for call in CALLS]
        for pending, _ in calls:
            if pending is not None:
                pending.wait()
        assert all(right() for _, right in calls)
        return unisono.init().host.call_number

    numbers = worlds(3).run(work)
    assert numbers == numbers[:1] * 3


def test_a_list_on_one_rank_and_one_tensor_on_another(worlds: Worlds) -> None:
    def work() -> None:
        rank, size = unisono.get_rank(), unisono.get_world_size()
        for _ in range(3):
            output, source = unisono.empty(COUNT), unisono.empty(size * COUNT).copy_(values(rank, size * COUNT))
            if rank:
                unisono.reduce_scatter(output, list(source.view(size, -1)))
            else:
                unisono.reduce_scatter_single(output, source)
            assert torch.equal(output, total(size * COUNT).view(size, -1)[rank])

    worlds(2).run(work)


def test_a_rank_that_comes_late_is_waited_for(worlds: Worlds, tmp_path: Path) -> None:
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
            _, right = all_reduce(unisono.empty if group.rank == 0 else torch.empty, group=group)
            return bool(right())

    assert all(worlds(3).run(work))
