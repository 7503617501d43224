"""What is kept for later calls has a limit, and calls whose part has gone are right all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

import unisono
from unisono.calls.coalesced.list_layout import _Memory
from unisono.hosts.sentinel import board_replicas
from unisono.schedule.algorithms import all_gather

Worlds = Callable[[int], unisono.World]


@contextmanager
def limit(module: str, name: str, value: int) -> Iterator[None]:
    """Another limit, in a rank that tests share."""
    home: Any = import_module(module)
    usual = getattr(home, name)
    setattr(home, name, value)
    try:
        yield
    finally:
        setattr(home, name, usual)


def gathers(group: unisono.Group, count: int, algorithm: Any) -> None:
    table = torch.empty(group.size * count)
    unisono.all_gather_single(table, torch.arange(count) + group.rank * 1000.0, group, algorithm=algorithm)
    assert table.tolist() == [rank * 1000.0 + k for rank in range(group.size) for k in range(count)]


def test_programs(worlds: Worlds) -> None:
    """Tables that are made for one call each have programs of their own."""

    def work() -> int:
        group = unisono.new_group()
        assert isinstance(group, unisono.Group)
        with limit("unisono.engine.host", "_MOST_PROGRAMS", 4):
            for k in range(12):

                def mine(r: Any, ranks: int) -> Any:
                    yield from all_gather.ring(r, ranks)

                gathers(group, 10 + k, mine)
                gathers(group, 10 + k, None)
            return len(group.host._programs)

    assert max(worlds(2).run(work)) <= 4


def test_steps_of_lists_with_ever_new_timeouts(worlds: Worlds) -> None:
    def work() -> int:
        group = unisono.new_group()
        assert isinstance(group, unisono.Group)
        for k in range(100):
            tensors = [torch.full((5,), 1.0 + group.rank), torch.full((7,), 10.0 * group.rank)]
            unisono.all_reduce_coalesced(tensors, group=group, timeout_s=50.0 + k)
            assert [tensor.tolist() for tensor in tensors] == [[3.0] * 5, [10.0] * 7]
        memory = group.kept[_Memory]
        return max(len(layout.steps) for layouts in memory.layouts.values() for layout in layouts)

    assert max(worlds(2).run(work)) <= 16


def test_calls_with_tensors_in_shared_memory_on_some_ranks_only(worlds: Worlds) -> None:
    def work() -> int:
        group = unisono.new_group()
        assert isinstance(group, unisono.Group)
        with limit("unisono.calls.dispatch.lowering_mismatch", "_MOST_KINDS", 3):
            for k in range(30):
                count = 50_000 + k % 10
                tensor = unisono.empty(count) if group.rank else torch.empty(count)
                tensor.copy_(torch.arange(count) + group.rank * 7.0)
                unisono.all_reduce(tensor, group=group)
                assert torch.equal(tensor, torch.arange(count) * 2.0 + 7)
            unisono.barrier(group)
        return len(group.mixed)

    assert worlds(2).run(work) == [3, 3]


def test_groups_that_a_host_has_forgotten() -> None:
    memory: Any = SimpleNamespace(add=lambda *_: None, remove=lambda *_: None, read=lambda *_: b"")
    told: list[object] = []
    known = board_replicas.Copies(0, [0, 1], memory, lambda *_: None, lambda _, words: told.append(words))
    for gid in range(board_replicas._MOST_FORGOTTEN + 100):
        known.register(0, gid, 4096, (0, 1))
        known.forget(0, gid)
    assert len(told) == board_replicas._MOST_FORGOTTEN + 100
    assert len(known._forgotten) == board_replicas._MOST_FORGOTTEN
    assert board_replicas._MOST_FORGOTTEN + 99 in known._forgotten
