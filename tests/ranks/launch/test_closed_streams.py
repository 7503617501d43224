"""Programs whose standard streams are closed, as those of daemons may be."""

import json
import os
from pathlib import Path

import pytest

from tests.support.programs import run_python

PROGRAM = """
import ctypes, json, os, sys
if "set" in sys.argv:
    sys.stderr = sys.stdout = open(os.devnull, "w")  # it has the number of a standard stream
import torch, unisono
unisono.init()
tensor = torch.ones(3)
unisono.all_reduce(tensor)

def program():
    libc = ctypes.CDLL(None)
    for number in (1, 2):
        libc.dprintf(number, b"%s", b"text of a library" * 100)
    print("text of the function")
    tensor = torch.ones(3)
    unisono.all_reduce(tensor)
    return tensor.tolist(), unisono.init().world.host.arena.fd

sums = [program()]
for hosts in (None, "1+1"):
    with unisono.World(2, hosts=hosts, timeout_s=60) as world:
        sums += world.run(program)
streams = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
with open(sys.argv[1], "w") as file:
    json.dump([sums, streams], file)
"""


@pytest.mark.cold
@pytest.mark.parametrize("stderr", ["none", "set"])
def test_closed_streams_are_not_reused(tmp_path: Path, stderr: str) -> None:
    """No file of the library gets the number of a standard stream, to which C code may write."""

    def close() -> None:
        os.closerange(0, 3)

    made = tmp_path / "made"
    run_python("-c", PROGRAM, made, stderr, stdin=None, preexec_fn=close)
    sums, streams = json.loads(made.read_text())
    assert [each for each, _ in sums] == [[1.0] * 3] + [[2.0] * 3] * 4
    assert all(fd > 2 for _, fd in sums)
    assert set(streams) == {os.devnull}
