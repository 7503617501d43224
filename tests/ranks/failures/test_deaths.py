"""Processes that are killed or stopped before the ranks have met, watched or not: all others name them in time."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.support.ports import free_port
from tests.support.programs import Python, place

PROGRAM = """
import json, os, signal, sys, time
import unisono
from unisono.ranks.rendezvous.meeting import Meeting

phases, how = os.environ.get("PHASE", "").split(", "), os.environ.get("HOW", "")

def fall():
    if how == "pause":
        print("there", flush=True)
        sys.stdin.readline()
    else:
        os._exit(3) if how == "exit" else os.kill(os.getpid(), getattr(signal, how))

def fails_in(name):
    method = getattr(Meeting, name)
    def fail(self, *arguments):
        if f"before {name}" in phases:
            fall()
        result = method(self, *arguments)
        if f"after {name}" in phases:
            fall()
        return result
    setattr(Meeting, name, fail)

for name in ("_come", "_place", "_hand_out", "_follow", "hold", "_give_up"):
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
def start(python: Python) -> Start:
    """start(rank, port, ...): a rank of three, which calls init() when `go` says so."""
    return lambda rank, port, timeout_s, **more: python(
        "-c", PROGRAM, TIMEOUT_S=timeout_s, **place(rank, 3, port), **more
    )


@pytest.fixture
def port() -> int:
    return free_port()


def go(*ranks: subprocess.Popen[str]) -> None:
    """Let these ranks call init(), when all of them have imported what they need."""
    for rank in ranks:
        assert rank.stdout.readline() == "starts\n", rank.communicate()
    for rank in ranks:
        proceed(rank)


def said(process: subprocess.Popen[str]) -> tuple[str, list[int], str, float]:
    out, err = process.communicate(timeout=100)
    assert len(out.splitlines()) == 1, (out, err)
    kind, culprits, words, took_s = json.loads(out)
    return kind, culprits, words, took_s


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize(
    ("victim", "phase", "how"),
    [
        (2, "after _come", "SIGKILL"), (1, "before _follow", "SIGKILL"), (0, "after _place", "SIGKILL"),
        (0, "after _hand_out", "SIGKILL"), (0, "after hold", "SIGKILL"),
        (1, "after hold", "SIGKILL"), (1, "after hold", "SIGTERM"), (1, "after hold", "exit"),
    ],
)  # fmt: skip
def test_a_rank_that_is_killed_is_named_by_all(start: Start, port: int, victim: int, phase: str, how: str) -> None:
    """Where it has met the others, these make a call; of rank 1, which they watch, they know how it has ended."""
    ranks = [start(rank, port, 80.0, **({"PHASE": phase, "HOW": how} if rank == victim else {})) for rank in range(3)]
    go(*ranks)
    for rank in {0, 1, 2} - {victim}:
        kind, culprits, words, took_s = said(ranks[rank])
        assert (kind, culprits) == ("PeerGone", [victim]), words
        assert took_s < 60
        if phase == "after hold" and victim == 1:
            assert (f"signal {getattr(signal, how):d} ({how})" if how != "exit" else "exited with code 3") in words
        elif phase != "after hold":
            assert "start all ranks again" in words
            assert "shrink" not in words


def test_late_rank_learns_why_rank_0_gave_up(start: Start, port: int) -> None:
    """Rank 0's process runs the store: it stays until rank 1 has read the reason."""
    victim = start(2, port, 80.0, PHASE="after _come", HOW="SIGKILL")
    first, late = (
        start(rank, port, 80.0, PHASE=phase, HOW="pause")
        for rank, phase in enumerate(("after _give_up", "after _come"))
    )
    go(late)
    go(first)
    reach(late)
    go(victim)
    reach(first)
    proceed(first)
    assert json.loads(first.stdout.readline())[:2] == ["PeerGone", [2]]
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(1.0)
    proceed(late)
    kind, culprits, words, _ = said(late)
    assert (kind, culprits) == ("PeerGone", [2]), words


def reach(rank: "subprocess.Popen[str]") -> None:
    """Wait until a rank pauses."""
    assert rank.stdout.readline() == "there\n", rank.communicate()


def proceed(rank: "subprocess.Popen[str]") -> None:
    """Let a rank go on that pauses, or waits for the start."""
    rank.stdin.write("go\n")
    rank.stdin.flush()


@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "phase", "how"),
    [(2, "before _come", "SIGKILL"), (0, "after _place", "SIGSTOP")],
    ids=["killed", "stopped"],
)
def test_a_rank_that_says_nothing_is_missing(start: Start, port: int, victim: int, phase: str, how: str) -> None:
    """The process of a rank 0 that is stopped runs the store, which then says neither yes nor no."""
    ranks = [start(rank, port, 12.0, **({"PHASE": phase, "HOW": how} if rank == victim else {})) for rank in range(3)]
    go(*ranks)
    for rank in {0, 1, 2} - {victim}:
        kind, culprits, words, took_s = said(ranks[rank])
        assert (kind, culprits) == ("WaitTimeout", [victim]), words
        assert took_s < 40
        assert victim or f"127.0.0.1:{port}, has not answered for" in words


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
