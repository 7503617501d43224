"""Ranks of several hosts connect: who ends, or gives up, meanwhile is named by all others, and not waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.ports import free_port

SCRIPT = """
import os, sys, time, unisono
from unisono.hosts.carriers.gloo import GlooCarrier
rank, event, here = int(os.environ["RANK"]), sys.argv[1], sys.argv[2]

def before_connecting(*_):
    sys.stdout.write("met\\n")
    sys.stdout.flush()
    if event == "interrupted":
        os.kill(os.getpid(), 2)
    time.sleep(1000)

if rank == int(here):
    GlooCarrier.__init__ = before_connecting
try:
    unisono.init(timeout_s=60)
except BaseException as error:
    print(type(error).__name__, error)
"""


Ranks = Callable[..., "list[subprocess.Popen[str]]"]


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """ranks(size, *arguments): as many processes, each on a host of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(size: int, *arguments: str) -> list[subprocess.Popen[str]]:
        port = free_port()
        for rank in range(size):
            place = {
                "RANK": f"{rank}", "WORLD_SIZE": f"{size}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}",
                "UNISONO_HOST_ID": f"{rank}", "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            words = [sys.executable, "-c", SCRIPT, *arguments]
            started.append(subprocess.Popen(words, env={**os.environ, **place}, stdout=subprocess.PIPE, text=True))
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("doomed", [1, 2])
def test_who_is_killed_before_it_has_connected_is_named_by_all(ranks: Ranks, doomed: int) -> None:
    """Nobody waits out the limit of a minute."""
    all_of_them = ranks(3, "killed", f"{doomed}")
    out = all_of_them[doomed].stdout
    assert out is not None
    assert out.readline() == "met\n"
    all_of_them[doomed].send_signal(signal.SIGKILL)
    for rank, process in enumerate(all_of_them):
        if rank != doomed:
            said, _ = process.communicate(timeout=100)
            assert said.startswith(f"PeerGone rank {doomed} ")
            assert f" was killed by signal 9 (SIGKILL) while rank {rank} waited for it in init()" in said
            assert "pid 0" not in said


def test_who_gives_up_before_it_has_connected_is_named_by_all(ranks: Ranks) -> None:
    all_of_them = ranks(3, "interrupted", "1")
    said = [process.communicate(timeout=100)[0] for process in all_of_them]
    assert said[1].startswith("met\nKeyboardInterrupt")
    for rank in (0, 2):
        assert said[rank].startswith("PeerGone rank 1 "), said
        assert f" gave up init(): KeyboardInterrupt while rank {rank} waited for it in init()" in said[rank]
