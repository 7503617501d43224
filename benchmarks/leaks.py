"""Does anything grow? Worlds, failed runs, groups and default groups, made and closed a thousand times.

    python -m benchmarks.leaks

Each line is one process after so many rounds: descriptors, threads, mappings, children, of these zombies, and resident
memory in KiB. The first line of a case is after a round that loads what is loaded once.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import unisono

ROUNDS, LINES = 1000, 5


def census(pid: int) -> str:
    """What a process has now."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    children = (process / f"task/{pid}/children").read_text().split()
    zombies = sum(") Z " in Path(f"/proc/{child}/stat").read_text() for child in children)
    figures = {
        "descriptors": len(os.listdir(process / "fd")), "threads": status["Threads"],
        "mappings": len((process / "maps").read_text().splitlines()), "children": len(children), "zombies": zombies,
        "resident": status["VmRSS"].split()[0],
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
    """A world with a run; returns the fork server's process."""
    with unisono.world(2) as world:
        return world.run(os.getppid)[:1]


def one_death() -> None:
    """A run in which a rank dies."""
    unisono.run(lambda: os._exit(3) if unisono.get_rank() else 0, 2, return_exceptions=True)


def one_group() -> None:
    """A sub-group with a call of each kind."""
    if group := unisono.new_group([0, 1]):
        mine, peer = torch.ones(100_000), 1 - group.rank
        unisono.all_reduce(mine, group=group)
        unisono.all_reduce(mine, group=group, async_op=True).wait()
        unisono.sendrecv(mine, peer, torch.empty_like(mine), peer, group)
        unisono.all_gather_object([None, None], peer, group)
        unisono.destroy_group(group)


def one_default_group() -> None:
    """A default group of one."""
    unisono.init()
    unisono.barrier()
    unisono.shutdown()


def main() -> None:
    """Print all cases."""
    print("worlds: the parent and the fork server")
    repeat(one_world, lambda: [os.getpid(), *one_world()], ROUNDS)
    print("runs in which a rank dies: the parent and the fork server")
    repeat(one_death, lambda: [os.getpid(), *one_world()], ROUNDS // 3)
    print("sub-groups: rank 0")
    unisono.run(lambda: repeat(one_group, lambda: [] if unisono.get_rank() else [os.getpid()], ROUNDS), 2)
    print("default groups")
    repeat(one_default_group, lambda: [os.getpid()], ROUNDS)


if __name__ == "__main__":
    main()
