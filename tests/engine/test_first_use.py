"""Threads that need a kernel for the first time at the same time, in processes that have none in memory yet."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import unisono
from tests.support.programs import run_python
from unisono.base.python import make_once

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


def program(hosts: str, code: Path | None = None) -> str:
    """What the program above writes. code: the folder where machine code is kept; None: the usual one."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if code is not None:
        environ["UNISONO_CACHE_DIR"] = str(code)
    return run_python("-c", MAIN, hosts, env=environ, check=True).stdout


@pytest.mark.long
def test_threads_of_two_worlds_without_code(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda hosts: program(hosts, tmp_path), ["", "2x1"])) == ["[[], []]\n"] * 2
    assert not [path.name for path in tmp_path.iterdir() if path.suffix not in (".code", ".lock")]


def in_threads(function: Callable[[], object]) -> list[object]:
    begin = threading.Barrier(THREADS)

    def work(_: int) -> object:
        begin.wait(30)
        return function()

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))


def test_one_thread_makes_what_all_get() -> None:
    made: list[int] = []

    @make_once
    def make(*of: int) -> object:
        made.append(of[0])
        return object()

    for number in range(20):
        assert len({id(thing) for thing in in_threads(lambda number=number: make(number))}) == 1  # type: ignore[misc]
    assert made == list(range(20))
    assert make(3) is not make(4)
    assert make(3) is make(3)


def test_failed_value_is_made_again() -> None:
    errors = [ValueError("first")]

    @make_once
    def make() -> int:
        if errors:
            raise errors.pop()
        return 7

    with pytest.raises(ValueError, match="first"):
        make()
    assert make() == 7


def test_value_made_by_signal_handler_stays() -> None:
    """It runs in the thread that has begun to make the same."""
    depth: list[int] = []

    @make_once
    def make() -> list[int]:
        depth.append(len(depth))
        if len(depth) == 1:
            make()
        return [len(depth)]

    assert make() is make()
    assert depth == [0, 1]


def test_forked_process_makes_its_own_value() -> None:
    begun, end = threading.Event(), threading.Event()

    @make_once
    def make(wait: bool) -> int:
        if wait:
            begun.set()
            end.wait(30)
        return os.getpid()

    thread = threading.Thread(target=make, args=(True,))
    thread.start()
    begun.wait(30)
    child = os.fork()
    if not child:
        os._exit(0 if make(False) == os.getpid() else 1)
    end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
