"""Ranks that nobody watches, as under a launcher: who dies is named with signal or exit code all the same."""

import os
import subprocess
import sys

import pytest

from tests.support.ports import free_port

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
