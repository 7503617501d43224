"""Calls that work on copies: of tensors that are not plain, and with `keep_inputs` of all in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import unisono

COUNT = 1_001
RANKS = 4


@pytest.fixture(scope="module", params=[None, "2x2", "3+1"])
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
    for turn in range(4):  # what was planned for one call is used by later ones
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
