"""What groups keep for their calls ends with them: the group, its memory in the arena, and what calls have kept."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import unisono
from tests.support.worlds import OnHosts, Worlds
from unisono import p2p

LONG = 40_000
ROUNDS = 2


def ones(count: int) -> torch.Tensor:
    return torch.ones(count)


def make_every_call(group: unisono.Group) -> None:
    """One call of each kind, short and long, at once and in the background."""
    me, size = group.rank, group.size
    after, before = (me + 1) % size, (me - 1) % size
    for count in (10, LONG):
        for in_background in (False, True):
            works = [
                unisono.all_reduce(ones(count), "avg", group, in_background),
                unisono.reduce(ones(count), 0, group=group, async_op=in_background),
                unisono.broadcast(ones(count), 1, group, in_background),
                unisono.all_gather_single(ones(count * size), ones(count), group, in_background),
                unisono.all_gather([ones(count) for _ in range(size)], ones(count), group, in_background),
                unisono.gather(ones(count), [ones(count) for _ in range(size)] if me == 0 else None, 0, group),
                unisono.scatter(ones(count), [ones(count) for _ in range(size)] if me == 0 else None, 0, group),
                unisono.reduce_scatter_single(ones(count), ones(count * size), "sum", group, in_background),
                unisono.all_to_all_single(ones(count * size), ones(count * size), group=group, async_op=in_background),
                unisono.scan(ones(count), group=group),
                unisono.all_reduce_coalesced([ones(count), ones(3)], "sum", group, in_background),
                unisono.broadcast_coalesced([ones(count), ones(3)], 0, group, in_background),
                unisono.all_gather_coalesced([ones(count * size)], [ones(count)], group, in_background),
                unisono.reduce_scatter_coalesced([ones(count)], [ones(count * size)], "sum", group, in_background),
                p2p.irecv(ones(count), before, group, 5),
                p2p.isend(ones(count), after, group, 5),
            ]
            for work in works:
                if work is not None:
                    work.wait()
        p2p.sendrecv(ones(count), after, ones(count), before, group)
        uneven = [ones(1 + rank) for rank in range(size)]
        unisono.all_gather(uneven, ones(1 + me), group)
    unisono.barrier(group)
    unisono.all_gather_object([None] * size, {"rank": me}, group)
    p2p.sendrecv(ones(1), me, ones(1), me, group)


def watched(group: unisono.Group) -> Iterator[tuple[str, Any]]:
    """What has to go with a group."""
    yield from (("group", group), ("host", group.host), ("region", group.host.arena))
    for plan in group.plans.values():
        yield "plan", plan
    if group.progress_engine is not None:
        yield "progress engine", group.progress_engine
    if group.span is not None:
        yield "span", group.span
        if group.span.local is not None:
            yield "group on one host", group.span.local
        for steps in group.span.kept.values():
            yield "steps", steps


def left_of(refs: list[tuple[str, weakref.ref[Any]]]) -> list[str]:
    """What is still there when all ranks have left, and what took its time has ended.

    A thread that was the last to hold a progress engine is there until it has freed that engine's rings.
    """
    lender, end = unisono.init().host.lender, time.monotonic() + 10.0
    while True:
        lender.collect()
        gc.collect()
        left = [what for what, ref in refs if ref() is not None]
        left += [one.name for one in threading.enumerate() if one.name.startswith("unisono messages")]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.001)


def free_bytes() -> int:
    """Of this rank's heap, when all ranks have given back what they lent."""
    unisono.barrier()
    unisono.init().host.lender.collect()
    heap = unisono.init().host.heap
    heap._sort()
    return sum(nbytes for _, nbytes in heap._free) + heap._idle


def make_and_leave(closes: bool) -> list[str]:
    """What rounds of groups leave behind. closes: by destroy_group; else they are dropped."""
    wrong, free = list[str](), -1
    for number in range(ROUNDS + 1):
        group = unisono.new_group()
        sub = unisono.new_group([0, group.size - 1], group=group)
        groups = [one for one in (group, sub) if isinstance(one, unisono.Group)]
        for one in groups:
            make_every_call(one)
        refs = [(what, weakref.ref(thing)) for one in groups for what, thing in watched(one)]
        if closes:
            for one in groups:
                unisono.destroy_group(one)
        del group, sub, groups, one
        wrong += [f"round {number}: a {what} is left" for what in left_of(refs)]
        before, free = free, free_bytes()
        if number and free != before:  # the first round makes what the world itself keeps
            wrong.append(f"round {number}: {free - before:+} free bytes in the heap")
    return wrong


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("closes", [True, False], ids=["closed", "dropped"])
def test_on_one_host(closes: bool, worlds: Worlds) -> None:
    assert worlds(2).run(make_and_leave, closes) == [[], []]


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("closes", [True, False], ids=["closed", "dropped"])
@pytest.mark.parametrize("hosts", ["2x1", "2+1"])
def test_over_hosts(hosts: str, closes: bool, on_hosts: OnHosts) -> None:
    assert on_hosts(hosts).run(make_and_leave, closes) == [[]] * (2 if hosts == "2x1" else 3)
