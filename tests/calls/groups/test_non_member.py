"""Ranks that a group leaves out hold something false that no call takes for the world."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import unisono
from unisono.base.errors import ArgumentError
from unisono.calls.groups import (
    destroy_group,
    get_group_rank,
    get_process_group_ranks,
    new_group,
    split,
)
from unisono.ranks.group.non_member import NonMember

Worlds = Callable[[int], unisono.World]


def every_call(group: unisono.Group) -> list[Callable[[], object]]:
    t, wide = torch.ones(2), torch.ones(4)
    return [
        lambda: unisono.all_reduce(t, group=group),
        lambda: unisono.all_reduce(t, group=group, async_op=True),
        lambda: unisono.reduce(t, 0, group=group),
        lambda: unisono.broadcast(t, 0, group),
        lambda: unisono.scatter(t, None, 0, group),
        lambda: unisono.gather(t, None, 0, group),
        lambda: unisono.all_gather([t, t], t, group),
        lambda: unisono.all_gather_single(wide, t, group),
        lambda: unisono.reduce_scatter(t, [t, t], group=group),
        lambda: unisono.reduce_scatter_single(t, wide, group=group),
        lambda: unisono.all_to_all([t, t], [t, t], group=group),
        lambda: unisono.all_to_all_single(wide, wide, group=group),
        lambda: unisono.barrier(group),
        lambda: unisono.empty(3, group=group),
        lambda: unisono.share_(t, group=group),
        lambda: new_group(group=group),
        lambda: split(0, group=group),
        lambda: group.timeout_s,
    ]


def test_calls_of_a_group_on_a_rank_outside_raise(worlds: Worlds) -> None:
    def outside() -> None:
        group = new_group([0, 2], name="pair")
        nothing = split(None)
        if unisono.get_rank() == 1:
            for call in every_call(group):  # type: ignore[arg-type]
                with pytest.raises(ArgumentError, match=r"rank 1 is no member of group 'pair': .*`if group:`"):
                    call()
            with pytest.raises(ArgumentError, match="rank 1 is no member"):
                unisono.barrier(nothing)  # type: ignore[arg-type]
        unisono.barrier()

    worlds(3).run(outside)


def test_what_it_knows(worlds: Worlds) -> None:
    def outside() -> None:
        group = new_group([0, 2])
        assert bool(group) is (unisono.get_rank() != 1)
        assert get_process_group_ranks(group) == [0, 2]
        assert get_group_rank(group, 2) == 1
        if isinstance(group, NonMember):
            assert (unisono.get_rank(group), unisono.get_world_size(group)) == (-1, -1)
            assert repr(group) == "NonMember('ranks 0, 2', rank 1 of the world)"
            for same in (copy.copy(group), copy.deepcopy(group)):
                assert (same.name, same.world_ranks, bool(same)) == (group.name, (0, 2), False)
            group.close()
        destroy_group(group)
        assert not split(-1)
        assert get_process_group_ranks(split(None)) == []

    worlds(3).run(outside)


def test_no_code_takes_a_false_group_for_none() -> None:
    """`group or ...` would make a call of the world out of a call of a group that this rank is not in."""
    found = [
        f"{path}:{node.lineno}"
        for path in sorted(Path(unisono.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)
        if isinstance(node.values[0], ast.Name) and node.values[0].id == "group"
    ]
    assert not found, "ask `if group is None`"
