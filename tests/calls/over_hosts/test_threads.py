"""Threads of one rank, each with a group over hosts of its own: of the same ranks, and of the same name."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

import unisono

THREADS, ROUNDS = 4, 5


def in_threads(work: Callable[[int], object]) -> list[object]:
    """What a function returns or raises in threads that begin together; it gets the number of its thread."""
    begin, got = threading.Barrier(THREADS), list[object]([None] * THREADS)

    def run(thread: int) -> None:
        try:
            begin.wait(30)
            got[thread] = work(thread)
        except Exception as error:  # noqa: BLE001  of any kind: the caller tells it
            got[thread] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def total(group: unisono.Group, thread: int) -> float:
    """The sum over the group of a value that differs between threads and ranks: a digit tells each."""
    tensor = torch.full((3,), (thread + 1) * 10.0**group.rank)
    unisono.all_reduce(tensor, group=group)
    (value,) = set(tensor.tolist())
    return value


WANTED = [(thread + 1) * 1111.0 for thread in range(THREADS)]


def first_calls() -> list[list[object]]:
    seen = []
    for _ in range(ROUNDS):
        groups = [unisono.new_group() for _ in range(THREADS)]
        seen.append(in_threads(lambda thread, groups=groups: total(groups[thread], thread)))
        for group in groups:
            unisono.destroy_group(group)
    return seen


def groups_of_groups() -> list[list[object]]:
    parents = [unisono.new_group() for _ in range(THREADS)]

    def work(thread: int) -> float:
        group = unisono.new_group(group=parents[thread])
        value = total(group, thread)
        unisono.destroy_group(group)
        return value

    seen = [in_threads(work) for _ in range(ROUNDS)]
    for parent in parents:
        unisono.destroy_group(parent)
    return seen


def test_groups_make_their_first_calls_at_once(on_hosts: Callable[[str], unisono.World]) -> None:
    """Each makes a group of its ranks on this host then, and the threads of different ranks do so in any order."""
    assert on_hosts("2x2").run(first_calls) == [[WANTED] * ROUNDS] * 4


def test_groups_are_made_of_groups_at_once(on_hosts: Callable[[str], unisono.World]) -> None:
    assert on_hosts("2x2").run(groups_of_groups) == [[WANTED] * ROUNDS] * 4
