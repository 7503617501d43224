"""Ranks that share a processor with others, beside a process that computes: no call fails."""

import os
import subprocess
import sys
import time

import pytest
import torch

import unisono

COMPUTES = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


def work(seconds: float) -> int:
    """Small and long calls on this rank, back to back, for so long; how many."""
    stop, calls, began = torch.zeros(1), 0, time.monotonic()
    while not stop.item():
        unisono.all_reduce(torch.ones(2))
        unisono.all_reduce(torch.ones(100_000))
        unisono.barrier()
        stop.fill_(float(time.monotonic() - began > seconds))
        unisono.broadcast(stop, 0)
        calls += 4
    return calls


@pytest.mark.long
def test_busy_processors_raise_no_error() -> None:
    ranks = 4 * len(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", COMPUTES]) as busy:
        try:
            assert len(set(unisono.run(work, ranks, args=(5.0,), timeout_s=90))) == 1
        finally:
            busy.kill()
