"""The parts of a call over hosts that are inside a host: they may differ there, and be waited for, as a call may."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

import unisono
from tests.support.waiting import until
from unisono.base.config import Config
from unisono.calls.dispatch.retry_rules import StagedCalls
from unisono.ranks.failures import attend

COUNT = 1 << 18
STAGED_IN_ONE = {"cross_memory_bytes": 0, "tag_bytes": 1 << 22, "segment_bytes": 1 << 23}
"""Private vectors of COUNT elements are staged, their signatures beside them; those in shared memory are elsewhere."""


@pytest.mark.sampled
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("settings", [{}, STAGED_IN_ONE], ids=["usual", "staged in one"])
def test_tensors_in_shared_memory_on_one_rank_of_a_host(settings: dict[str, int], odd: int) -> None:
    """Ranks 0 to 2 are on one host, where rank 0 hands the sum to the others, who can read it on some ranks only."""

    def work() -> tuple[bool, int]:
        group = unisono.init()
        me, right = group.rank, True
        for turn in range(20):
            tensor = group.empty(COUNT) if me == odd else torch.empty(COUNT)
            unisono.all_reduce(tensor.copy_((torch.arange(COUNT) * (me + 3) % 251).float() + turn))
            expected = sum((torch.arange(COUNT) * (rank + 3) % 251).float() + turn for rank in range(4))
            right = right and torch.equal(tensor, expected)  # type: ignore[arg-type]
        assert group.span is not None
        return right, len(group.span.local.kept[StagedCalls]) if group.span.local else 0

    config = replace(Config.from_env(), **settings)  # type: ignore[arg-type]
    with unisono.world(4, hosts="3+1", timeout_s=60, config=config) as world:
        found = world.run(work)
    assert [right for right, _ in found] == [True] * 4
    assert all(differed for _, differed in found[:3]), "they have differed, and gone on"


def test_a_rank_raises_once_its_neighbours_need_it_no_more() -> None:
    """Ranks 0 and 1 are in their part of a call when the other host makes another one. Rank 1 is held up there."""

    def work() -> tuple[str, float]:
        group = unisono.init()
        me, span = group.rank, group.span
        unisono.all_reduce(torch.ones(3))
        assert span is not None
        assert span.local is not None
        local, pid = span.local.host, group.host.arena.board(1).pid
        number = local.call_number

        def hold_up() -> None:
            until(lambda: local.entered(1) >= number)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.7)
            os.kill(pid, signal.SIGCONT)

        with ThreadPoolExecutor(1) as pool:
            if me == 0:
                pool.submit(hold_up)
            attend._COLLECT_S = 0.1  # rank 1 does not tell its call
            with pytest.raises(unisono.MismatchError) as raised:
                unisono.all_reduce(torch.ones(1 << 23 if me < 2 else 5))
        tensor = torch.full((3,), 10.0**me)
        unisono.all_reduce(tensor)
        return str(raised.value), tensor[1].item()

    found = unisono.run(work, 4, hosts="2x2", timeout_s=30)
    assert [total for _, total in found] == [1111.0] * 4
    assert all("float32[8388608]" in said and "float32[5]" in said for said, _ in found)
