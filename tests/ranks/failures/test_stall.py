"""Ranks that are alive but do not come: one rank says who, what it does and where; a time-out says the same."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.on_ranks import all_pids, in_new_world
from tests.support.programs import Python, free_port, place
from tests.support.torch_ranks import TorchRanks
from tests.support.waiting import once
from unisono import PeerFailed, WaitTimeout
from unisono.base.config import Config
from unisono.base.records import Wait
from unisono.calls import p2p
from unisono.observe.live.ask_stacks import process_status
from unisono.ranks.failures.stall import Stall

DEADLINE_S = 30.0
SOON = Config(stall_warning_s=0.3)
STEADY = Config(stall_warning_s=1.0)  # where several ranks wait: all wait when the time of the first is up


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that will happen, on a line of this file, as long as the world has time."""
    while not condition():
        time.sleep(0.001)


def overhear(folder: Path) -> None:
    """Keep what this rank says on standard error from when all ranks are here: it takes long to import a test's module.

    No call of ours waits for that: who asks for a stack might get the answer to an earlier one.
    """
    group = unisono.init()
    sys.stderr = (folder / f"{group.rank}.said").open("w")
    until(lambda: len(list(folder.glob("*.said"))) == group.size)


def told(folder: Path) -> list[str]:
    """The warnings of all ranks."""
    return "".join(path.read_text() for path in sorted(folder.glob("*.said"))).split("unisono: ")[1:]


def sleep_until_told(folder: Path) -> None:
    until(lambda: bool(told(folder)))


def computing(folder: Path) -> None:
    group = unisono.init()
    group.timeout_s, tensor, matrix = float("inf"), torch.full((3,), group.rank + 1.0), torch.ones(200, 200)
    while group.rank == 2 and not told(folder):
        torch.mm(matrix, matrix)
    unisono.all_reduce(tensor)
    assert tensor[0] == 10.0


def sleeping(folder: Path) -> None:
    if unisono.get_rank() == 1:
        sleep_until_told(folder)
    unisono.barrier()


def keeping_a_chain(folder: Path) -> None:
    """Rank 2 keeps rank 1 waiting, and that rank 0."""
    lower, upper = (unisono.new_group(ranks, name=f"{ranks}") for ranks in ([0, 1], [1, 2]))
    if unisono.get_rank() == 2:
        sleep_until_told(folder)
    for group in filter(None, (upper, lower)):
        unisono.barrier(group)


def sending(folder: Path) -> None:
    """Rank 0 waits for rank 1, or if there are more, for any of them."""
    unisono.init().timeout_s = float("inf")
    if unisono.get_rank() == 0:
        assert p2p.recv(src=1 if unisono.get_world_size() == 2 else None).tolist() == [7.0, 7.0]
    else:
        sleep_until_told(folder)
    if unisono.get_rank() == 1:
        p2p.send(torch.full((2,), 7.0), 0)


HERE = rf"{re.escape(__file__)}:\d+"
CHAIN = r"rank 0 waits in group '\[0, 1\]' for rank 1, which waits in group '\[1, 2\]' for rank 2"
SCENES: dict[str, tuple[int, str | None, Callable[[Path], None], str]] = {
    "computes": (4, None, computing, rf"all_reduce\(float32\[3\], sum\) #\d+ \({HERE}\).* for rank 2: rank 2 "),
    "sleeps": (2, None, sleeping, rf"barrier\(\) #\d+ \({HERE}\).* for rank 1: rank 1 "),
    "on another host": (2, "2x1", sleeping, r"barrier.* for rank 1: rank 1 "),
    "at the end of a chain": (3, None, keeping_a_chain, f".* {CHAIN}; rank 2 "),
    "awaited for a message": (2, None, sending, r"recv\(None, src=.* for rank 1: rank 1 "),
    "one of several": (3, None, sending, r"recv\(None, src=.* for ranks 1, 2: rank 1 "),
}
"""Size, hosts, what ranks do, and how the one warning begins."""


@pytest.mark.ranks(4, hosts="3+1")
@pytest.mark.parametrize(("another", "missing"), [("all_reduce #7", (0,)), ("barrier #8", (1,))])
def test_time_out_names_the_end_of_the_chain(tmp_path: Path, another: str, missing: tuple[int, ...]) -> None:
    """Not one that waits in the same call itself: whoever goes on without the missing ranks would leave it out.

    In a group whose ranks have other numbers in the world. The chain may cross hosts.
    """
    world, group = unisono.init(), unisono.new_group([1, 2, 3])
    waits = {2: Wait("world", another, (1,)), 3: Wait("world", "all_reduce #7", (2,))}
    if world.rank in waits:
        board = world.engine.arena.board(world.rank)
        board.set_wait(waits[world.rank])
        (tmp_path / f"{world.rank}").touch()
        until(lambda: len(list(tmp_path.iterdir())) >= 2)
        if world.rank == 3:
            error = Stall(group, "all_reduce #7").late((1,), 1.0)
            assert error.missing == missing
            assert ("waits in barrier #8" in str(error)) == (missing == (1,))
            (tmp_path / "over").touch()
        until((tmp_path / "over").exists)
        board.set_wait(None)


@pytest.mark.parametrize(("size", "hosts", "scene", "begins"), SCENES.values(), ids=SCENES)
@in_new_world("size", hosts="hosts", config=STEADY)
def test_missing_rank_is_told_with_its_stack(
    tmp_path: Path, size: int, hosts: str | None, scene: Callable[[Path], None], begins: str
) -> None:
    overhear(tmp_path)
    pids = all_pids()
    scene(tmp_path)
    (text,) = told(tmp_path)
    line, *stack = text.splitlines()
    assert (found := re.match(rf"rank 0 has waited .* s in {begins}\(pid (\d+)\) .*at {HERE}", line)), line
    assert int(found[1]) in pids
    assert any(f'"{__file__}", line' in frame for frame in stack)
    assert any(f" in {scene.__name__}" in frame for frame in stack)
    assert all(frame.startswith("    ") for frame in stack)
    assert "rank_process.py" not in text


@in_new_world(2, config=SOON)
def test_a_stopped_rank_is_told_as_such(tmp_path: Path) -> None:
    overhear(tmp_path)
    pid = all_pids()[1]
    if unisono.get_rank() == 0:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: process_status(pid).state == "T")
        (tmp_path / "stopped").touch()
        once(lambda: bool(told(tmp_path)), lambda: os.kill(pid, signal.SIGCONT))
    else:
        until((tmp_path / "stopped").exists)
    unisono.barrier()
    line, silent = told(tmp_path)[0].splitlines()
    assert line.endswith("is stopped by a signal, until it gets SIGCONT")
    assert silent == "    (no stack: its process takes no signals now)"


def test_crossed_groups_are_told_as_a_circle(tmp_path: Path) -> None:
    def crossed() -> str:
        overhear(tmp_path)
        first, second = unisono.new_group(name="a"), unisono.new_group(name="b")
        first.timeout_s = second.timeout_s = 3.0
        rank = unisono.get_rank()
        with pytest.raises(WaitTimeout) as caught:
            _ = unisono.all_reduce(torch.ones(3), group=first) if rank == 0 else unisono.barrier(second)
        (tmp_path / f"{rank} is over").touch()
        until((tmp_path / f"{1 - rank} is over").exists)  # who returns first leaves both groups
        return str(caught.value)

    with unisono.World(2, timeout_s=DEADLINE_S, config=STEADY) as world:
        errors = world.run(crossed)
    (text,) = told(tmp_path)
    zero = "rank 0 waits in group 'a' for rank 1, which waits in group 'b' for rank 0: none of them can go on"
    one = "rank 1 waits in group 'b' for rank 0, which waits in group 'a' for rank 1: none of them can go on"
    assert zero in text
    assert "waits in barrier() #1 of group 'b' (" in text
    assert " in crossed" in text
    assert zero in errors[0] or one in errors[1]  # the second is alone in its call when its time is up


@in_new_world(2, config=SOON)
def test_background_call_waits_only_when_awaited(tmp_path: Path) -> None:
    overhear(tmp_path)
    group = unisono.init()
    if group.rank == 1:
        sleep_until_told(tmp_path)
    work = unisono.all_reduce(torch.ones(5), async_op=True)
    for _ in range(3 * (group.rank == 0)):  # it looks again and again, and says nothing
        time.sleep(SOON.stall_warning_s)
        group.missing_in_background = (1,)
        until(lambda: not group.missing_in_background)
        assert not told(tmp_path)
    work.wait()
    assert len(told(tmp_path)) == 1


@in_new_world(2, config=Config(stall_warning_s=0.0))
def test_zero_means_that_no_wait_is_told(tmp_path: Path) -> None:
    """All the same it is on the board, until it ends."""
    overhear(tmp_path)
    board = unisono.init().engine.arena.board
    if unisono.get_rank() == 1:
        until(lambda: board(0).wait is not None)
    unisono.barrier()
    unisono.barrier()
    assert not any(board(rank).wait for rank in range(2))
    assert told(tmp_path) == []


CALLS: dict[str, Callable[[], object]] = {
    "barrier": lambda: unisono.barrier(timeout_s=0.2),
    "in the background": lambda: unisono.all_reduce(torch.ones(3), async_op=True, timeout_s=0.2).wait(),
    "recv": lambda: p2p.recv(torch.ones(3), 1, timeout_s=0.2),
    "recv from any": lambda: p2p.recv(torch.ones(3), timeout_s=0.2),
    "irecv": lambda: p2p.irecv(torch.ones(3), 1, timeout_s=0.2).wait(),
    "send": lambda: p2p.send(torch.ones(2_000_000), 1, timeout_s=0.2),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_time_out_says_the_same_as_data(tmp_path: Path, name: str) -> None:
    def late() -> Any:
        if unisono.get_rank() == 1:
            (tmp_path / "here").touch()
            until((tmp_path / "over").exists)
            if name == "barrier":
                with pytest.raises(PeerFailed, match=r"WaitTimeout: rank 0 waited \d") as failed:
                    unisono.barrier()
                assert "was here" not in str(failed.value)  # rank 1 knows that itself
            return os.getpid()
        until((tmp_path / "here").exists)  # imports take their time
        with pytest.raises(WaitTimeout) as caught:
            CALLS[name]()
        (tmp_path / "over").touch()
        return caught.value

    with unisono.World(2, timeout_s=DEADLINE_S) as world:
        error, pid = world.run(late)
    (seen,) = error.seen
    assert (seen.rank, seen.pid, seen.last_call, seen.tracer, seen.wait, seen.silent) == (1, pid, 0, 0, None, "")
    assert seen.line.startswith(f"{__file__}:")
    assert " in until" in seen.stack
    assert " in late" in seen.stack
    assert f"Rank 1 (pid {pid}) has made no call yet, and {seen}." in str(error)
    assert f"Rank 1 was here:\n{seen.stack}\n" in str(error)


@pytest.mark.parametrize("monitored", [False, True])
def test_torch_s_time_out_says_the_same(ranks: TorchRanks, tmp_path: Path, monitored: bool) -> None:
    def late() -> Any:
        limit = timedelta(seconds=0.3)
        group = dist.new_group(timeout=limit)
        if dist.get_rank() == 1:
            until((tmp_path / "over").exists)
            return None
        with pytest.raises(dist.DistBackendError) as caught:
            dist.monitored_barrier(group, limit) if monitored else dist.all_reduce(torch.ones(4), group=group)
        (tmp_path / "over").touch()
        return caught.value.seen, str(caught.value)  # type: ignore[attr-defined]

    (seen,), text = ranks(2)(late)[0]
    assert seen.line.startswith(f"{__file__}:")
    assert " in late" in seen.stack
    assert seen.stack in text


FULL = """
import os, resource, sys, torch, unisono
how, call, group = *sys.argv[1:], unisono.init()
unisono.barrier()
if group.rank == 1:
    sys.stdin.readline()
    if how == "dies":
        os._exit(3)
else:
    limit_s = 0.5 if how == "late" else 60.0
    call = compile(call, "the call", "eval")
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    unisono.barrier() if group.rank else eval(call)
    print("met", flush=True)
except Exception as error:
    print(type(error).__name__, flush=True)
"""
BARRIER = "unisono.barrier(timeout_s=limit_s)"


@pytest.mark.cold
@pytest.mark.parametrize(
    ("how", "call", "outcome"),
    [
        ("comes", BARRIER, "met"),
        ("late", BARRIER, "WaitTimeout"),
        ("late", "unisono.barrier(async_op=True, timeout_s=limit_s).wait()", "WaitTimeout"),
        ("dies", BARRIER, "PeerGone"),
    ],
)
def test_wait_needs_no_file_descriptor(python: Python, how: str, call: str, outcome: str) -> None:
    """Whatever a rank needs has been imported before. The peer is late, dies, or never comes."""
    settings, port = {"UNISONO_STALL_WARNING_S": 0.1}, free_port()
    waiting, other = (python("-c", FULL, how, call, **place(rank, 2, port), **settings) for rank in range(2))
    assert any("rank 0 has waited" in line for line in waiting.stderr or ())
    if how != "late" and other.stdin:
        other.stdin.write("\n")
        other.stdin.flush()
    assert waiting.stdout
    assert waiting.stdout.readline() == f"{outcome}\n", waiting.communicate(timeout=60)
