"""Does anything grow? Worlds, failed runs, groups and default groups, made and closed a thousand times; many calls.

    python -m benchmarks.leaks

Each line is one process after so many rounds: descriptors, threads, mappings, children, of these zombies, and resident
memory in KiB. The first line of a case is after a round that loads what is loaded once.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psutil
import torch

import unisono

ROUNDS, CALLS, LINES = 1000, 100_000, 5


def census(pid: int) -> str:
    process = psutil.Process(pid)
    children = process.children()
    figures = {
        "descriptors": process.num_fds(), "threads": process.num_threads(),
        "mappings": len(process.memory_maps(grouped=False)), "children": len(children),
        "zombies": sum(child.status() == psutil.STATUS_ZOMBIE for child in children),
        "resident": process.memory_info().rss >> 10,
    }  # fmt: skip
    return "  ".join(f"{name} {figure}" for name, figure in figures.items())


def repeat(round_of: Callable[[], Any], pids: Callable[[], list[int]], rounds: int) -> None:
    """Make rounds, and print the census of these processes before and in between."""
    round_of()
    for done in range(rounds + 1):
        if done % (rounds // LINES) == 0:
            gc.collect()
            for pid in pids():
                print(f"  {done:5d}  pid {pid}  {census(pid)}", flush=True)
        round_of()


def one_world() -> list[int]:
    """Make a world with a run. Returns the fork server's process."""
    with unisono.world(2) as world:
        return world.run(os.getppid)[:1]


def one_death() -> None:
    unisono.run(lambda: os._exit(3) if unisono.get_rank() else 0, 2, return_exceptions=True)


def one_group() -> None:
    """A sub-group with a call of each kind."""
    if group := unisono.new_group([0, 1]):
        mine, peer = torch.ones(100_000), 1 - group.rank
        unisono.all_reduce(mine, group=group)
        unisono.all_reduce_coalesced([mine, torch.ones(3)], group=group)
        unisono.all_reduce(mine, group=group, async_op=True).wait()
        unisono.sendrecv(mine, peer, torch.empty_like(mine), peer, group)
        unisono.all_gather_object([None, None], peer, group)
        unisono.destroy_group(group)


def one_default_group() -> None:
    unisono.init()
    unisono.barrier()
    unisono.shutdown()


def ten_calls(ever_new: bool, numbers: Iterator[int]) -> None:
    """Calls of ten kinds in the default group of two ranks; each hundredth time on longer tensors.

    ever_new: the sizes of tensors change from one time to the next.
    """
    number, me = next(numbers), unisono.get_rank()
    count = 100_000 if number % 100 == 0 else (1, 100, 5_000, 20_000)[number % 4]
    count += number * 7 % 2_003 if ever_new else 0
    mine, both, peer = torch.ones(count), torch.ones(2 * count), 1 - me
    unisono.all_reduce(mine)
    unisono.all_reduce(mine, async_op=True).wait()
    unisono.broadcast(mine, number % 2)
    unisono.all_gather_single(both, mine)
    unisono.reduce_scatter_single(mine, both)
    unisono.all_to_all_single(torch.empty(2 * count), both)
    unisono.all_reduce_coalesced([mine, torch.ones(5 + number % 7)])
    unisono.sendrecv(mine, peer, torch.empty(count), peer, tag=number)
    unisono.all_gather_object([None, None], {"number": number})
    unisono.barrier()


def rank_0() -> list[int]:
    return [] if unisono.get_rank() else [os.getpid()]


def main() -> None:
    print("worlds: the parent and the fork server")
    repeat(one_world, lambda: [os.getpid(), *one_world()], ROUNDS)
    print("runs in which a rank dies: the parent and the fork server")
    repeat(one_death, lambda: [os.getpid(), *one_world()], ROUNDS // 3)
    print("sub-groups: rank 0")
    unisono.run(lambda: repeat(one_group, rank_0, ROUNDS), 2)
    for hosts, where in ((None, "on one host"), ("2x1", "over two hosts")):
        for ever_new, sizes in ((False, "a few sizes"), (True, "sizes that change")):
            print(f"{CALLS} calls on tensors of {sizes}, {where}, tens: rank 0")
            call = partial(ten_calls, ever_new, itertools.count())
            unisono.run(repeat, 2, (call, rank_0, CALLS // 10), hosts=hosts)
    print("default groups")
    repeat(one_default_group, lambda: [os.getpid()], ROUNDS)


if __name__ == "__main__":
    main()
