"""A relay stops as a kernel does: where a rank is late it comes back, says which, and can be run again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unisono
from tests.support.waiting import until
from unisono.engine.compile.program import DONE, WAITING
from unisono.schedule import Hosts


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("shape", "late"), [("2x1", 1), ("2x2", 1), ("2x2", 2)])
def test_a_call_that_waits_comes_back_and_goes_on(shape: str, late: int, tmp_path: Path) -> None:
    came_back = tmp_path / "came back"

    def work() -> tuple[set[int], float]:
        group, tensor, seen = unisono.init(), torch.ones(3), set()
        unisono.all_reduce(tensor)
        if group.rank == 0:
            ((plan,), place) = group.plans.values(), tensor.data_ptr()
            while (outcome := group.run(plan.address, place, place, group.state)) != DONE:
                seen.add(outcome)
                came_back.touch()
        else:
            until(lambda: group.rank != late or came_back.exists())
            unisono.all_reduce(tensor)
        return seen, tensor[1].item()

    ranks = Hosts.parse(shape).ranks
    results = unisono.run(work, ranks, hosts=shape, timeout_s=60)
    assert [total for _, total in results] == [ranks**2] * ranks
    assert WAITING | late << 8 in results[0][0]
    assert all(outcome & 0xFF == WAITING for outcome in results[0][0])
