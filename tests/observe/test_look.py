"""Jobs seen from outside: who computes, who is in which call, and whom all others hang on."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from tests.support.programs import Python, place
from tests.support.say import flat, refused
from tests.support.waiting import until
from unisono.base.records import DepartureKind
from unisono.engine.logs.plan_registry import GroupNote
from unisono.engine.logs.rank_logs import CALLS
from unisono.engine.memory.arena import Arena
from unisono.engine.process.alive import start_ticks
from unisono.observe.live import snapshot as live_snapshot
from unisono.observe.live.jobs import attached, stack_of, the_job
from unisono.observe.live.meeting_page import waiting_of
from unisono.observe.live.snapshot import Culprit, Snapshot, diagnose, rates, snapshot
from unisono.observe.traces.last_calls import last_calls_text
from unisono.observe.traces.tracks import RankCall, Track, time_inside_ns

RANKS = 4
PACKAGE = Path(unisono.__file__).parent


def begin(folder: Path) -> tuple[int, torch.Tensor, unisono.Group]:
    """Make a sub-group and some calls, tell the process, and return this rank, a tensor and the group."""
    world = unisono.init()
    world.timeout_s = float("inf")
    rank, tensor = world.rank, torch.full((1000,), world.rank + 1.0)
    pair: Any = unisono.new_group([2, 3], name="pair")
    for _ in range(5):
        unisono.all_reduce(tensor, "max")
    (folder / f"{rank}.part").write_text(str(os.getpid()))
    (folder / f"{rank}.part").rename(folder / f"{rank}.pid")
    return rank, tensor, pair


def test_rank_that_leaves_during_a_look() -> None:
    """It says how, and ends, between two reads."""
    arena = Arena.create(1)
    board = arena.board(0)
    board.set_process(1 << 30, 1)
    arena.plan_registry(0).add_group(GroupNote("world", arena.start, 0, 1, "", 0, 0))

    def ended(pid: int) -> int:
        board.set_gone(DepartureKind.RETURNED, "returned")
        return start_ticks(pid)

    with patch.object(live_snapshot, "start_ticks", ended):
        (seen,) = snapshot(arena).ranks
    assert seen.gone == "returned"
    arena.close()


def stopped(folder: Path) -> None:
    rank, tensor, _ = begin(folder)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    unisono.all_reduce(tensor, "max")


def looping(folder: Path, who: int = 1) -> None:
    rank, tensor, _ = begin(folder)
    while rank == who and not (folder / "go").exists():
        pass
    unisono.all_reduce(tensor, "max")


def in_another_group(folder: Path) -> None:
    rank, tensor, pair = begin(folder)

    def end() -> None:
        until((folder / "go").exists, 60.0)
        unisono.init().abort("the test has seen it")

    if rank == 0:
        threading.Thread(target=end).start()
    if rank == 3:
        unisono.all_reduce(tensor, "max", group=pair)
    unisono.all_reduce(tensor, "max")


@contextmanager
def running(work: Callable[[Path], None], folder: Path, hosts: str | None = None) -> Iterator[tuple[Arena, list[int]]]:
    """A job of four ranks that is looked at, where rank 0 is, and its processes."""
    job = threading.Thread(
        target=lambda: unisono.run(work, RANKS, (folder,), hosts=hosts, return_exceptions=True, timeout_s=60),
        daemon=True,
    )
    job.start()
    until(lambda: len(list(folder.glob("*.pid"))) == RANKS, 60.0)
    pids = [int((folder / f"{rank}.pid").read_text()) for rank in range(RANKS)]
    try:
        with attached(the_job(pids[0])) as arena:
            yield arena, pids
    finally:
        (folder / "go").touch()
        if work is stopped:
            until(lambda: Path(f"/proc/{pids[2]}/stat").read_text().split()[2] == "T")
            os.kill(pids[2], signal.SIGCONT)
        job.join(60)
        assert not job.is_alive()


def culprit(arena: Arena, waiting: int) -> tuple[Culprit, Snapshot]:
    """The first culprit, once so many ranks wait."""
    seen: list[Snapshot] = []

    def found() -> bool:
        seen[:] = [snapshot(arena, 50_000_000)]
        return bool(seen[0].culprits) and len(seen[0].culprits[0].waiting) == waiting

    until(found)
    return seen[0].culprits[0], seen[0]


def test_stopped_rank_is_the_culprit(tmp_path: Path) -> None:
    with running(stopped, tmp_path) as (arena, pids):
        found, seen = culprit(arena, 3)
        until(lambda: snapshot(arena).ranks[2].does.startswith("is stopped"))
        assert (found.ranks, found.waiting, found.is_circle) == ((2,), (0, 1, 3), False)
        assert [rank.pid for rank in seen.ranks] == pids
        inside: Any = seen.ranks[0].inside
        assert (inside.group, inside.number, inside.missing) == ("world", seen.ranks[2].calls + 1, (2,))
        assert inside.call == "all_reduce(float32[1000], max)"
        name, line = Path(__file__).name, stopped.__code__.co_firstlineno + 4
        until(lambda: f"{name}:{line})" in snapshot(arena).waits[0].call)
        said = flat(f"doctor {pids[0]}")
        assert said.startswith(f"rank 2 (pid {pids[2]}) is stopped: ranks 0, 1, 3 have waited ")
        assert f"for it Let it go on with `kill -CONT {pids[2]}`." in said
        assert f"{name}:{line})" in said, "the line of this call, not of the first one like it"


def test_computing_rank_is_culprit_with_its_stack(tmp_path: Path) -> None:
    with running(looping, tmp_path) as (arena, pids):
        found, seen = culprit(arena, 3)
        assert (found.ranks, found.waiting) == ((1,), (0, 2, 3))
        assert "waits in group 'world' for rank 1" in found.text
        assert seen.ranks[1].inside is None
        assert any("in looping" in line for line in stack_of(arena, 1).frames)
        found_out = diagnose(seen, snapshot(arena), lambda rank: stack_of(arena, rank).line)
        assert found_out.ranks == [1, 0, 2, 3]
        said = rf"rank 1 \(pid {pids[1]}\) .*, at .*test_look.py:\d+: ranks 0, 2, 3 have waited .* for it"
        assert re.match(said, found_out.lines[0])
        assert not any(f"{PACKAGE}/" in frame for frame in stack_of(arena, 0).frames), "frames of this package"
        assert "not entered by rank 1" in last_calls_text([t for t in seen.tracks if t.group == "world"], seen.at_ns)
        with unisono.world(1) as other:
            other.run(int)  # only now there are its ranks
            for command in "top", "doctor":
                named = re.search(r"found \d+ jobs. Name one by a process of it, such as ([\d, ]+)", refused(command))
                assert named
                assert {*map(str, pids)} & {*named[1].split(", ")}


def test_far_rank_is_no_process_of_this_host(tmp_path: Path) -> None:
    with running(partial(looping, who=3), tmp_path, "2x2") as (arena, pids):
        until(lambda: [one.ranks for one in snapshot(arena).culprits] == [(3,)])
        seen = snapshot(arena)
        assert [rank.far for rank in seen.ranks] == [False, False, True, True]
        assert {rank.does for rank in seen.ranks[2:]} == {"is on another host"}
        said = flat(f"doctor {pids[0]}")
        assert f"rank 3 (pid {pids[3]}) is on another host: " in said
        assert f"Ask on its host: unisono doctor {pids[3]}" in said
        said = flat(f"doctor {pids[3]}")
        assert re.match(rf"rank 3 \(pid {pids[3]}\) .*, at .*test_look.py:\d+: rank 2 has waited ", said), said


def test_circle_through_groups_is_one_deadlock(tmp_path: Path) -> None:
    with running(in_another_group, tmp_path) as (arena, pids):
        found, seen = culprit(arena, 4)
        assert (found.ranks, found.is_circle) == ((2, 3), True)
        assert "rank 2 waits in group 'world' for rank 3, which waits in group 'pair' for rank 2:" in found.text
        assert {(rank, wait.group, wait.missing) for rank, wait in seen.waits.items()} >= {
            (0, "world", (3,)), (2, "world", (3,)), (3, "pair", (2,)),
        }  # fmt: skip
        said = flat(f"doctor {pids[1]}")
        assert "deadlock for " in said
        assert "Let all ranks make these calls in one order." in said
        assert "last calls of group 'pair', by number: #1 all_reduce" in said
        assert "rank 2 (pid" in said
        assert "rank 3 (pid" in said
        said = flat(f"top {pids[1]} --once")
        assert "none of them can go on" in said
        assert all(f" {rank} {pid} waits for " in f" {said}" for rank, pid in enumerate(pids))


CONTAINED = """
import time, unisono

def work():
    world = unisono.init()
    if world.rank == 1:
        print("here", flush=True)
        time.sleep(600)
    unisono.barrier(timeout_s=600)

unisono.run(work, 2)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="a namespace of process numbers needs root")
def test_ranks_in_a_container() -> None:
    """Their boards have the numbers of the container; the commands show the numbers of this process's namespace."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", CONTAINED]
    with subprocess.Popen(inside, stdout=subprocess.PIPE) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == b"here\n"
            with attached(the_job(job.pid)) as arena:
                found, seen = culprit(arena, 1)
                assert found.ranks == (1,)
                assert not any(rank.gone for rank in seen.ranks)
                assert all(one.pid in [pid for pid, _ in the_job(job.pid)] for one in seen.ranks)
                assert any("in work" in line for line in stack_of(arena, 1).frames)
        finally:
            job.kill()


def track(rank: int, *times: tuple[int, int]) -> Track:
    calls = [RankCall(k, *span, None) for k, span in enumerate(times, 1)]
    return Track("world", 0, rank, rank, 2, calls)


def test_calls_within_calls_count_once() -> None:
    some = [track(0, (10, 20), (30, 50), (60, 0)), track(0, (35, 45), (48, 55))]
    assert time_inside_ns(some, 0, 100) == 10 + 25 + 40
    assert time_inside_ns(some, 15, 40) == 5 + 10


@in_new_world(2)
def test_rates_are_of_the_time_between_two_looks() -> None:
    group, tensor = unisono.init(), torch.full((256,), unisono.get_rank() + 1.0)
    with attached(the_job(os.getpid())) as arena:
        unisono.barrier()
        before = snapshot(arena)
        for _ in range(CALLS // 2):
            unisono.all_reduce(tensor, "max")
        after = snapshot(arena)
        found = rates(before, after)[group.rank]
        passed_s = (after.at_ns - before.at_ns) / 1e9
        assert round(found.calls_per_s * passed_s) in range(CALLS // 2 - 1, CALLS // 2 + 2)
        assert 0 < found.share <= 1
        assert round(found.bytes_per_s * passed_s) in range(1024 * CALLS // 2 - 1, 1024 * CALLS // 2 + 2)
        unisono.barrier()


def test_ranks_without_a_group_say_for_whom(tmp_path: Path, python: Python) -> None:
    """Rank 0 waits for two ranks that do not come, rank 1 of another job for a rank 0 that does not listen."""
    script = tmp_path / "waits.py"
    script.write_text("import unisono\n\nunisono.init(timeout_s=100)\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound but not listening
        port = probe.getsockname()[1]
        ranks = [python(script, **place(rank, size, at)) for rank, size, at in ((0, 3, 0), (1, 2, port))]
        until(lambda: "to come" in _what(ranks[0].pid) and "to listen" in _what(ranks[1].pid), 100)
        first, second = (flat(f"doctor {rank.pid}") for rank in ranks)
    assert f"rank 0 of 3 (pid {ranks[0].pid}) has no group yet" in first
    assert "it has waited for ranks 1, 2 to come at 127.0.0.1:" in first
    assert f"for rank 0 to listen at 127.0.0.1:{port}" in second
    for said in (first, second):
        assert f'{script}", line 3 in <module>' in said


def _what(pid: int) -> str:
    """What a process waits for; of rank 0, once it knows which ranks."""
    waiting = waiting_of(pid)
    return "" if waiting is None or (waiting.rank == 0 and len(waiting.ranks) < 2) else waiting.what
