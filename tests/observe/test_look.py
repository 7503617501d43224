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
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import unisono
from tests.support.programs import Python, place
from tests.support.say import flat, refused
from tests.support.waiting import until
from unisono.base.records import CallRecord
from unisono.engine.logs.plan_registry import PlanNote
from unisono.observe.live.jobs import the_job
from unisono.observe.live.snapshot import rates
from unisono.observe.traces.tracks import RankCall, Track, time_inside_ns
from unisono.tools.cli import app

RANKS = 4
PACKAGE = Path(unisono.__file__).parent
LINE = r"\S*test_look\.py:\d+"


def begin(folder: Path) -> tuple[int, torch.Tensor, unisono.Group]:
    """Make sub-groups of one name and some calls, tell the process, and return this rank, a tensor and its group."""
    world = unisono.init()
    world.timeout_s = float("inf")
    rank, tensor = world.rank, torch.full((1000,), world.rank + 1.0)
    pair: Any = unisono.split(rank // 2, name="pair")
    for _ in range(5):
        unisono.all_reduce(tensor, "max")
    (folder / f"{rank}.part").write_text(str(os.getpid()))
    (folder / f"{rank}.part").rename(folder / f"{rank}.pid")
    return rank, tensor, pair


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
def running(work: Callable[[Path], None], folder: Path, hosts: str | None = None) -> Iterator[list[int]]:
    """A job of four ranks, and its processes."""
    job = threading.Thread(
        target=lambda: unisono.run(work, RANKS, (folder,), hosts=hosts, return_exceptions=True, timeout_s=60),
        daemon=True,
    )
    job.start()
    until(lambda: len(list(folder.glob("*.pid"))) == RANKS, 60.0)
    pids = [int((folder / f"{rank}.pid").read_text()) for rank in range(RANKS)]
    try:
        yield pids
    finally:
        (folder / "go").touch()
        if work is stopped:
            until(lambda: Path(f"/proc/{pids[2]}/stat").read_text().split()[2] == "T")
            os.kill(pids[2], signal.SIGCONT)
        job.join(60)
        assert not job.is_alive()


def doctor(pid: int, begins: str) -> str:
    """What doctor prints of the job of this process, as soon as it begins like this."""

    def said() -> str:
        return " ".join(CliRunner().invoke(app, ["doctor", f"{pid}"], env={"COLUMNS": "200"}).stdout.split())

    return until(lambda: next((text for text in [said()] if re.match(begins, text)), ""))


def test_stopped_rank_is_the_culprit(tmp_path: Path) -> None:
    line = f"{Path(__file__).name}:{stopped.__code__.co_firstlineno + 4}"  # of this call, not of the first one like it
    waits = rf"rank 0 is in all_reduce\(float32\[1000\], max\) #\d+ \(\S*{line}\) and waits for rank 2"
    with running(stopped, tmp_path) as pids:
        advice = rf"Let it go on with `kill -CONT {pids[2]}`\."
        doctor(pids[0], rf"rank 2 \(pid {pids[2]}\) is stopped: ranks 0, 1, 3 have waited .* for it {advice} {waits}")


def test_computing_rank_is_culprit_with_its_stack(tmp_path: Path) -> None:
    with running(looping, tmp_path) as pids:
        said = doctor(pids[0], rf"rank 1 \(pid {pids[1]}\) .*, at {LINE}: ranks 0, 2, 3 have waited .* for it")
        assert " in looping " in said
        assert f"{PACKAGE}/" not in said, "frames of this package"
        assert "not entered by rank 1" in said
        with unisono.world(1) as other:
            other.run(int)  # only now there are its ranks
            for command in "top", "doctor":
                named = re.search(r"found \d+ jobs. Name one by a process of it, such as ([\d, ]+)", refused(command))
                assert named
                assert {*map(str, pids)} & {*named[1].split(", ")}


def test_far_rank_is_no_process_of_this_host(tmp_path: Path) -> None:
    with running(partial(looping, who=3), tmp_path, "2x2") as pids:
        said = doctor(pids[0], rf"rank 3 \(pid {pids[3]}\) is on another host: ")
        assert f"Ask on its host: unisono doctor {pids[3]}" in said
        doctor(pids[3], rf"rank 3 \(pid {pids[3]}\) .*, at {LINE}: rank 2 has waited ")


def test_circle_through_groups_is_one_deadlock(tmp_path: Path) -> None:
    chain = "rank 2 waits in group 'world' for rank 3, which waits in group 'pair' for rank 2: none of them can go on"
    with running(in_another_group, tmp_path) as pids:
        said = doctor(pids[1], f"deadlock for .* {chain}")
        assert "Let all ranks make these calls in one order." in said
        assert "last calls of group 'pair', by number: #1 all_reduce" in said
        assert f"rank 2 (pid {pids[2]}" in said
        assert f"rank 3 (pid {pids[3]}" in said
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
            said = doctor(job.pid, r"rank 1 \(pid \d+\) .*: rank 0 has waited")
            assert " in work " in said
            assert said.split()[3].rstrip(")") in [f"{pid}" for pid, _ in the_job(job.pid)]
        finally:
            job.kill()


def track(rank: int, *times: tuple[int, int]) -> Track:
    calls = [RankCall(k, *span, None) for k, span in enumerate(times, 1)]
    return Track("world", 0, rank, rank, 2, calls)


def test_calls_within_calls_count_once() -> None:
    some = [track(0, (10, 20), (30, 50), (60, 0)), track(0, (35, 45), (48, 55))]
    assert time_inside_ns(some, 0, 100) == 10 + 25 + 40
    assert time_inside_ns(some, 15, 40) == 5 + 10


@pytest.mark.parametrize(
    ("made", "logged", "bytes_per_s"), [(100, 100, 400.0), (900, 100, 800.0)], ids=["all are logged", "the last ones"]
)
def test_rates_are_of_the_time_between_two_looks(made: int, logged: int, bytes_per_s: float) -> None:
    """Two seconds. Of calls of 8 bytes, the log has the last 100, since one second."""
    note = PlanNote(CallRecord("all_reduce", "float32", (2,), op="sum"), 8)
    times = [10**9 + k * 10**6 for k in range(logged)]
    calls = [RankCall(made - logged + 1 + k, at, at + 10**5, note) for k, at in enumerate(times)]
    then: Any = SimpleNamespace(at_ns=0, ranks=[SimpleNamespace(rank=0, calls=0)])
    now: Any = SimpleNamespace(at_ns=2 * 10**9, ranks=[SimpleNamespace(rank=0, calls=made)])
    now.tracks = [Track("world", 0, 0, 0, 2, calls)]
    (found,) = rates(then, now)
    assert (found.calls_per_s, found.bytes_per_s) == (made / 2, bytes_per_s)
    assert found.share == pytest.approx(0.005 if made == logged else 0.01)


def test_ranks_without_a_group_say_for_whom(tmp_path: Path, python: Python) -> None:
    """Rank 0 waits for two ranks that do not come, rank 1 of another job for a rank 0 that does not listen."""
    script = tmp_path / "waits.py"
    script.write_text("import unisono\n\nunisono.init(timeout_s=100)\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound but not listening
        port = probe.getsockname()[1]
        one, two = (python(script, **place(rank, size, at)) for rank, size, at in ((0, 3, 0), (1, 2, port)))
        waits = "it has waited for ranks 1, 2 to come at 127.0.0.1:"
        first = doctor(one.pid, rf"rank 0 of 3 \(pid {one.pid}\) has no group yet.*{waits}")
        second = doctor(two.pid, rf".*for rank 0 to listen at 127\.0\.0\.1:{port}")
    for said in (first, second):
        assert f'{script}", line 3 in <module>' in said
