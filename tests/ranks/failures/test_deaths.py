"""Processes that are killed or stopped before the ranks have met: all others name them, and none waits in vain.

Ranks that nobody watches, as under a launcher: who dies is named with signal or exit code all the same.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.ports import free_port

PROGRAM = """
import json, os, signal, sys, time
import unisono
from unisono.ranks.rendezvous.rendezvous import _Meeting

phase, number = os.environ.get("PHASE", ""), getattr(signal, os.environ.get("SIGNAL", "SIGKILL"))

def fails_in(name):
    method = getattr(_Meeting, name)
    def fail(self, *arguments):
        if phase == f"before {name}":
            os.kill(os.getpid(), number)
        result = method(self, *arguments)
        if phase == f"after {name}":
            os.kill(os.getpid(), number)
        return result
    setattr(_Meeting, name, fail)

for name in ("_come", "_place", "_hand_out", "_follow", "hold"):
    fails_in(name)
print("starts", flush=True)
sys.stdin.readline()
began = time.monotonic()
try:
    unisono.init(timeout_s=float(os.environ["TIMEOUT_S"]))
    unisono.barrier()
    said = ["", None, "", 0]
except (unisono.PeerGone, unisono.WaitTimeout, unisono.ArgumentError) as error:
    culprits = list(error.missing) if isinstance(error, unisono.WaitTimeout) else [getattr(error, "rank", None)]
    said = [type(error).__name__, culprits, str(error), time.monotonic() - began]
print(json.dumps(said), flush=True)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(rank, port, ...): a rank of three, which calls init() when `go` says so."""
    started: list[subprocess.Popen[str]] = []

    def one(rank: int, port: int, timeout_s: float, **more: str) -> subprocess.Popen[str]:
        env = {"RANK": rank, "WORLD_SIZE": 3, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TIMEOUT_S": timeout_s}
        env = {**os.environ, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in env.items()}, **more}
        command = [sys.executable, "-c", PROGRAM]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def port() -> int:
    return free_port()


def go(*ranks: subprocess.Popen[str]) -> None:
    """Let these ranks call init(), when all of them have imported what they need."""
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "starts\n", rank.communicate()
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("go\n")
        rank.stdin.flush()


def said(process: subprocess.Popen[str]) -> tuple[str, list[int], str, float]:
    out, err = process.communicate(timeout=100)
    assert len(out.splitlines()) == 1, (out, err)
    kind, culprits, words, took_s = json.loads(out)
    return kind, culprits, words, took_s


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(
    ("victim", "phase"), [(2, "after _come"), (1, "before _follow"), (0, "after _place"), (0, "after _hand_out")]
)
def test_a_rank_that_is_killed_is_named_by_all(start: Start, port: int, victim: int, phase: str) -> None:
    ranks = [start(rank, port, 80.0, **({"PHASE": phase} if rank == victim else {})) for rank in range(3)]
    go(*ranks)
    for rank in {0, 1, 2} - {victim}:
        kind, culprits, words, took_s = said(ranks[rank])
        assert (kind, culprits) == ("PeerGone", [victim]), words
        assert took_s < 60
        assert "shrink" not in words
        assert "start all ranks again" in words


@pytest.mark.long
def test_a_rank_that_is_killed_before_it_has_come_is_missing(start: Start, port: int) -> None:
    ranks = [start(rank, port, 15.0, **({"PHASE": "before _come"} if rank == 2 else {})) for rank in range(3)]
    go(*ranks)
    for rank in range(2):
        kind, culprits, words, _ = said(ranks[rank])
        assert (kind, culprits) == ("WaitTimeout", [2]), words


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize(("victim", "phase"), [(1, "after _follow"), (0, "after hold")])
def test_a_rank_that_is_killed_before_it_uses_its_memory_is_named(
    start: Start, port: int, victim: int, phase: str
) -> None:
    """The others have met it, and make a call."""
    ranks = [start(rank, port, 80.0, **({"PHASE": phase} if rank == victim else {})) for rank in range(3)]
    go(*ranks)
    for rank in {0, 1, 2} - {victim}:
        kind, culprits, words, took_s = said(ranks[rank])
        assert (kind, culprits) == ("PeerGone", [victim]), words
        assert took_s < 60


@pytest.mark.long
def test_a_rank_0_that_is_stopped_is_named_in_time(start: Start, port: int) -> None:
    """Its process runs the store, which then says neither yes nor no."""
    stopped = {"PHASE": "after _place", "SIGNAL": "SIGSTOP"}
    ranks = [start(rank, port, 10.0, **(stopped if rank == 0 else {})) for rank in range(3)]
    go(*ranks)
    for rank in (1, 2):
        kind, culprits, words, took_s = said(ranks[rank])
        assert (kind, culprits) == ("WaitTimeout", [0]), words
        assert took_s < 40
    assert f"127.0.0.1:{port}, has not answered for" in words


def test_a_job_whose_port_is_taken_is_told_by_whom(start: Start, port: int) -> None:
    first, second = (start(0, port, 100.0, TORCHELASTIC_RUN_ID=job) for job in "ab")
    go(first)
    until_it_listens(port)
    go(second)
    kind, _, words, _ = said(second)
    assert kind == "ArgumentError"
    assert f"rank 0 cannot listen at MASTER_ADDR=127.0.0.1, MASTER_PORT={port}: job 'torchrun a/0'" in words
    assert f"process {first.pid}" in words
    first.send_signal(signal.SIGKILL)


def until_it_listens(port: int) -> None:
    deadline = time.monotonic() + 100
    while True:
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", port)):
                return
        assert time.monotonic() < deadline
        time.sleep(0)


SCRIPT = """
import os, signal, unisono
group = unisono.init(timeout_s=60)
unisono.barrier()
if group.rank == 1:
    {end}
try:
    unisono.barrier(timeout_s=60)
except unisono.PeerGone as error:
    print(error.rank, error.how)
"""


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os._exit(3)", "exited with code 3"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "was killed by signal 15 (SIGTERM)"),
    ],
)
def test_the_survivor_knows_how_its_peer_has_ended(end, words):
    port = free_port()
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(end=end)],
            env=os.environ | meeting | {"RANK": f"{rank}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said, complaint = ranks[0].communicate(timeout=100)
        assert said == f"1 {words}\n", complaint
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
