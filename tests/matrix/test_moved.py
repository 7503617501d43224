"""What only copies tensors does so with every dtype, also with those that torch itself cannot copy."""

from __future__ import annotations

import pytest
import torch

import unisono
from tests.support.matrix import MOVED
from tests.support.matrix_layouts import Held
from tests.support.on_ranks import in_new_world, in_world
from tests.support.worlds import OnHosts
from unisono import p2p

COUNT = 1001


def held(dtype: str, seed: int, layout: str = "contiguous", shared: bool = False) -> tuple[Held, torch.Tensor]:
    """A tensor with values of its own for every seed, and these."""
    kind = getattr(torch, dtype)
    numbers = (torch.arange(COUNT * kind.itemsize) * 7 + seed * 13) % 251
    values = numbers.to(torch.uint8).view(kind)
    return Held(layout, COUNT, kind, shared, values), values


@pytest.mark.parametrize("dtype", MOVED)
@in_world(2, all_give="")
def test_messages_to_oneself(dtype: str) -> str:
    (given, values), (taken, _) = held(dtype, unisono.get_rank()), held(dtype, 9, "strided")
    p2p.send(given.tensor, unisono.get_rank())
    p2p.recv(taken.tensor, unisono.get_rank())
    return given.check(values) or taken.check(values)


@pytest.mark.parametrize("dtype", MOVED)
@in_world(2, all_give="")
def test_memory_that_is_moved_to_the_heap(dtype: str) -> str:
    (one, first), (other, second) = held(dtype, unisono.get_rank()), held(dtype, 5 + unisono.get_rank())
    unisono.share_(one.tensor)
    unisono.flatten_([other.tensor])
    wished = [tensor.view(torch.uint8).tolist() for tensor in (first, second)]
    found = [held.tensor.view(torch.uint8).tolist() for held in (one, other)]
    return "" if found == wished else f"{found} instead of {wished}"


@pytest.mark.parametrize("dtype", MOVED)
@in_world(2, all_give="")
def test_many_tensors_in_one_call(dtype: str) -> str:
    me = unisono.get_rank()
    pairs = [held(dtype, me), held(dtype, 5 + me, "strided")]
    unisono.broadcast_coalesced([one.tensor for one, _ in pairs], 1)
    return "".join(one.check(held(dtype, seed)[1]) for (one, _), seed in zip(pairs, (1, 6), strict=True))


@in_new_world(2, config=unisono.Config(keep_inputs=1), all_give=[""] * len(MOVED))
def test_calls_that_keep_their_inputs() -> list[str]:
    wrong = []
    for dtype in MOVED:
        one, _ = held(dtype, unisono.get_rank())
        unisono.broadcast(one.tensor, 1)
        wrong.append(one.check(held(dtype, 1)[1]))
    return wrong


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("shape", ["2x1", "2x2"])
def test_calls_over_hosts(on_hosts: OnHosts, shape: str, dtype: str) -> None:
    def over() -> str:
        p, me = unisono.get_world_size(), unisono.get_rank()
        (one, mine), outputs = held(dtype, me), [held(dtype, 9)[0] for _ in range(p)]
        unisono.all_gather([held.tensor for held in outputs], one.tensor)
        found = one.check(mine) + "".join(out.check(held(dtype, k)[1]) for k, out in enumerate(outputs))
        unisono.broadcast(one.tensor, 1)
        return found + one.check(held(dtype, 1)[1])

    assert on_hosts(shape).run(over) == [""] * (2 if shape == "2x1" else 4)


@pytest.mark.parametrize("dtype", MOVED)
def test_state_that_retry_restores(dtype: str) -> None:
    """What a step has changed before a rank died is as it was when the survivor makes the step again."""

    def step(state: torch.Tensor, before: list[list[int]]) -> None:
        before.append(state.view(torch.uint8).tolist())
        state.view(torch.uint8).zero_()
        if unisono.get_rank() == 1 and unisono.get_world_size() == 2:
            raise SystemExit
        unisono.barrier()

    def program() -> bool:
        one, values = held(dtype, 3)
        seen: list[list[int]] = []
        unisono.retry(lambda: step(one.tensor, seen), state=[one.tensor])
        return seen == [values.view(torch.uint8).tolist()] * 2

    with unisono.world(2, timeout_s=60, return_exceptions=True) as world:
        assert world.run(program)[0] is True
