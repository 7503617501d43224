"""Random programs in which ranks refuse calls, come late, catch the errors and go on; an oracle knows every end.

All tensors have one shape. So a rank that is one call ahead or behind would get wrong values, and no error.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world

COUNT = 4
Call = Callable[[int, int, Any, bool], Any]
"""Makes a call, from this rank's number, the step's, the group and async_op. Returns its work or None; its output."""


def ones(*ranks: int) -> torch.Tensor:
    return torch.ones(*ranks or (COUNT,))


def value(rank: int, step: int) -> torch.Tensor:
    return torch.full((COUNT,), 100.0 * step + rank)


def all_reduce(rank: int, step: int, group: Any, later: bool, **how: Any) -> Any:
    tensor = value(rank, step)
    return unisono.all_reduce(tensor, group=group, async_op=later, **how), [tensor]


def broadcast(rank: int, step: int, group: Any, later: bool, src: int = 1, **how: Any) -> Any:
    tensor = value(rank, step)
    return unisono.broadcast(tensor, src, group, later, **how), [tensor]


def all_gather(rank: int, step: int, group: Any, later: bool, short: int = 0, **how: Any) -> Any:
    parts = [ones(COUNT + short) for _ in range(group.size)]
    return unisono.all_gather(parts, value(rank, step), group, later, **how), parts


def all_to_all(rank: int, step: int, group: Any, later: bool, short: int = 0, **how: Any) -> Any:
    out, splits = ones(COUNT * group.size), [COUNT] * (group.size - 1) + [COUNT - short]
    work = unisono.all_to_all_single(out, value(rank, step).repeat(group.size), splits, splits, group, later, **how)
    return work, [out]


def coalesced(rank: int, step: int, group: Any, later: bool, twice: bool = False, **how: Any) -> Any:
    tensors = [value(rank, step), value(rank, step)]
    work = unisono.all_reduce_coalesced(tensors[:1] * 2 if twice else tensors, group=group, async_op=later, **how)
    return work, tensors


def wanted(make: Any, ranks: range, step: int) -> list[torch.Tensor]:
    values = [value(rank, step) for rank in ranks]
    if make in (all_reduce, coalesced):
        return [torch.stack(values).sum(0)] * (1 + (make is coalesced))
    if make is broadcast:
        return [values[1]]
    return values if make is all_gather else [torch.cat(values)]


WRONG: Sequence[tuple[Any, dict[str, Any]]] = (
    (all_reduce, {"op": "bogus"}), (all_reduce, {"op": []}), (all_reduce, {"algorithm": "bogus"}),
    (all_reduce, {"timeout_s": -1.0}), (broadcast, {"src": 99}), (broadcast, {"src": "one"}),
    (all_gather, {"short": 1}), (all_gather, {"algorithm": "bogus"}), (all_to_all, {"short": 1}),
    (all_to_all, {"algorithm": "bogus"}), (all_to_all, {"timeout_s": "soon"}), (coalesced, {"twice": True}),
    (coalesced, {"op": "bogus"}),
)  # fmt: skip
"""Calls, and arguments with which a rank refuses them."""


@dataclass(frozen=True)
class Step:
    """A call of a group. late: seconds by rank; refuses: ranks -> a row of WRONG; later: ranks with async_op."""

    make: Any
    group: int
    late: dict[int, float]
    refuses: dict[int, int]
    later: tuple[int, ...]


def program(seed: str, ranks: int, steps: int, longest_s: float) -> list[Step]:
    """In every 16th step a rank is late by so much that others can be several calls ahead of it."""
    draw, made, sleeper = random.Random(seed), [], 0
    for k in range(steps):
        row = draw.randrange(len(WRONG))
        rows = [at for at, (make, _) in enumerate(WRONG) if make is WRONG[row][0]]
        some = draw.choice((0, 0, 1, 1, ranks - 1))
        refuses = {rank: draw.choice(rows) for rank in draw.sample(range(ranks), some)}
        late = {draw.randrange(ranks): draw.random() * 0.02}
        if k % 16 == 3:
            sleeper = draw.randrange(ranks)
            late = {sleeper: longest_s}
        if 3 <= k % 16 < 8 and draw.random() < 0.8:
            refuses = {rank: draw.choice(rows) for rank in range(ranks) if rank != sleeper}
        later = tuple(rank for rank in range(ranks) if draw.random() < 0.3)
        made.append(Step(WRONG[row][0], draw.randrange(2) if k % 16 < 12 else 0, late, refuses, later))
    return made


def play(steps: Sequence[Step]) -> list[str]:
    """Make the calls of this rank; returns what is wrong."""
    world = unisono.init()
    me, ranks, wrong = world.rank, world.size, list[str]()
    groups, pending = [world, unisono.new_group()], list[Callable[[], None]]()

    def check(k: int, step: Step, ended: Callable[[], Any], out: Sequence[torch.Tensor]) -> None:
        try:
            ended()
        except unisono.MismatchError as error:
            said = {rank for rank, call in error.calls.items() if call.refused}
            if me in step.refuses or not (said and said <= step.refuses.keys()):
                wrong.append(f"step {k}: {error}")
        except Exception as error:  # noqa: BLE001  whatever it is, it is an end of the call
            wrong.append(f"step {k}: {type(error).__name__}: {error}")
        else:
            want = wanted(step.make, range(ranks), k)
            if step.refuses or not all(torch.equal(*pair) for pair in zip(out, want, strict=True)):
                wrong.append(f"step {k}: ends with {out}, and not with {want}")

    for k, step in enumerate(steps):
        time.sleep(step.late.get(me, 0.0))
        refusal = WRONG[step.refuses[me]][1] if me in step.refuses else {}
        out: Any = ()
        try:
            work, out = step.make(me, k, groups[step.group], me in step.later, **refusal)
        except (unisono.UsageError, ValueError, TypeError) as error:
            if isinstance(error, unisono.MismatchError) or not refusal:
                check(k, step, lambda error=error: raise_(error), ())
            continue
        ended = (lambda: None) if work is None else work.wait
        pending.append(lambda k=k, step=step, ended=ended, out=out: check(k, step, ended, out))
        if work is None or len(pending) > 5:
            while pending:
                pending.pop(0)()
    while pending:
        pending.pop(0)()
    for group in groups:
        unisono.barrier(group)
    return wrong


def raise_(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(("shape", "steps", "longest_s"), [("2", 48, 1.5), ("4", 40, 1.2), ("2x1", 16, 1.2)])
def test_programs_with_refused_calls(shape: str, steps: int, longest_s: float) -> None:
    hosts = unisono.schedule.Hosts.parse(shape)
    made = program(shape, hosts.ranks, steps, longest_s)
    with unisono.World(hosts.ranks, hosts=shape if hosts.spans else None, timeout_s=30) as world:
        for rank, wrong in enumerate(world.run(play, made)):
            assert not wrong, f"rank {rank}: " + "\n".join(wrong)


@pytest.mark.parametrize("hosts", [None, "3x1", "2+1"])
@in_new_world(3, hosts="hosts")
def test_a_rank_that_comes_after_two_mismatches(hosts: str | None) -> None:
    """Its call is like the third one of the others, and must not be combined with that."""
    me = unisono.get_rank()
    unisono.barrier()
    if me == 2:
        time.sleep(0.8)
    import_module("unisono.ranks.failures.attend")._COLLECT_S = 0.05  # how long a rank waits for the others' calls
    for op in ("max", "min"):
        with pytest.raises(unisono.MismatchError):
            unisono.all_reduce(value(me, 0), op if me == 0 else "sum")
    tensor = value(me, 2)
    unisono.all_reduce(tensor)
    assert tensor[0].item() == 603.0


@pytest.mark.ranks(3)
def test_a_rank_refuses_many_calls_and_waits_for_none() -> None:
    me = unisono.get_rank()
    unisono.barrier()
    began = time.monotonic()
    if me == 2:
        time.sleep(1.5)
    for step in range(5):
        how = {"op": f"bogus{step}"} if me == 0 else {}
        with pytest.raises(unisono.MismatchError if me else ValueError, match="bogus"):
            all_reduce(me, step, unisono.init(), False, **how)
    if me == 0:
        assert time.monotonic() - began < 1.0
    _, (tensor,) = all_reduce(me, 7, unisono.init(), False)
    assert tensor.tolist() == [2103.0] * COUNT
