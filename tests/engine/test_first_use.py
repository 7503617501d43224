"""Threads that need a kernel for the first time at the same time, in processes that have none in memory yet."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import unisono
from tests.support.programs import run_python

THREADS = 6
DTYPES = torch.uint8, torch.float16, torch.float64, torch.float8_e4m3fn
OPS = "sum", "max"
MAIN = "from tests.engine.test_first_use import main; main()"


def largest(x: float, y: float) -> float:
    return x if x > y else y


def calls(group: unisono.Group, thread: int) -> None:
    """Calls that need many kernels, on values that differ between groups, ranks and calls."""
    rank, size, mine = group.rank, group.size, float(thread % 3)
    for dtype in DTYPES:
        for op in OPS:
            tensor = torch.full((70,), mine + rank).to(dtype)
            unisono.all_reduce(tensor, op, group)
            values = [mine + k for k in range(size)]
            wanted = sum(values) if op == "sum" else max(values)
            assert tensor.tolist() == [wanted] * 70, (dtype, op)
    for made in (torch.float32, torch.int64):
        tensor = torch.full((9,), mine + rank).to(made)
        unisono.all_reduce(tensor, unisono.make_op(largest, commutative=True), group)
        assert tensor.tolist() == [mine + size - 1] * 9, made
    got, after = torch.empty(1000), (rank + 1) % size
    unisono.sendrecv(torch.full((1000,), mine + 10 * rank), after, got, (rank - 1) % size, group)
    assert got.tolist() == [mine + 10 * ((rank - 1) % size)] * 1000
    many = [torch.full((k + 1,), mine + rank + k, dtype=torch.int32) for k in range(5)]
    unisono.all_reduce_coalesced(many, group=group)
    for k, tensor in enumerate(many):
        assert tensor.tolist() == [sum(mine + other + k for other in range(size))] * (k + 1)


def at_once() -> list[str]:
    """What has gone wrong in threads with a group each."""
    groups = [unisono.new_group(name=f"of thread {k}") for k in range(THREADS)]
    begin, wrong = threading.Barrier(THREADS), list[str]()

    def work(thread: int) -> None:
        try:
            begin.wait(60)
            calls(groups[thread], thread)
        except Exception as error:  # noqa: BLE001  of any kind: the caller tells it
            wrong.append(f"thread {thread}: {type(error).__name__}: {error}")

    with ThreadPoolExecutor(THREADS) as pool:
        pool.map(work, range(THREADS))
    return wrong


def main() -> None:
    """Write what has gone wrong on the ranks of a world."""
    sys.stdout.write(f"{unisono.run(at_once, 2, hosts=sys.argv[1] or None, timeout_s=100)}\n")


@pytest.mark.long
def test_threads_of_two_worlds_without_code(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, sys.path))
    environ = {**os.environ, "PYTHONPATH": path, "UNISONO_CACHE_DIR": str(tmp_path)}  # where machine code is kept
    with ThreadPoolExecutor() as pool:
        done = pool.map(lambda hosts: run_python("-c", MAIN, hosts, env=environ, check=True), ["", "2x1"])
        assert [one.stdout for one in done] == ["[[], []]\n"] * 2
    assert not [path.name for path in tmp_path.iterdir() if path.suffix not in (".code", ".lock")]
