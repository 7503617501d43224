"""Programs whose standard streams are closed, as those of daemons may be."""

import json
import os
from pathlib import Path

import pytest

from tests.support.programs import run_python

STREAMS = """
import os

def streams(pid):
    return [os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)]
"""
PROGRAM = f"""
import ctypes, json, sys
{STREAMS}
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
    return tensor.tolist(), streams("self") + streams(os.getppid())

sums = [(program()[0], streams("self"))]
for hosts in (None, "1+1"):
    with unisono.World(2, hosts=hosts, timeout_s=60) as world:
        sums += world.run(program)
with open(sys.argv[1], "w") as file:
    json.dump([*sums, (None, streams("self"))], file)
"""
SCRIPT = f"""
import json, sys
{STREAMS}
with open(f"{{sys.argv[1]}}-{{os.environ['RANK']}}", "w") as file:
    json.dump(streams("self") + streams(os.getppid()), file)
"""
OURS = ("socket:", "/memfd:", "anon_inode:")


def close() -> None:
    os.closerange(0, 3)


@pytest.mark.cold
@pytest.mark.parametrize("stderr", ["none", "set"])
def test_closed_streams_are_not_reused(tmp_path: Path, stderr: str) -> None:
    """No file of the library gets the number of a standard stream, to which C code may write."""
    made = tmp_path / "made"
    run_python("-c", PROGRAM, made, stderr, stdin=None, preexec_fn=close)
    *sums, (_, after) = json.loads(made.read_text())
    assert [each for each, _ in sums] == [[1.0] * 3] + [[2.0] * 3] * 4
    assert set(after) == {os.devnull}
    assert not [link for _, links in sums for link in links if link.startswith(OURS)]


@pytest.mark.cold
def test_closed_streams_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = ["run", "-n", "2", "--no-prefix", tmp_path / "script.py", tmp_path / "made"]
    run_python("-m", "unisono", *words, stdin=None, preexec_fn=close)
    for rank in range(2):
        assert json.loads((tmp_path / f"made-{rank}").read_text()) == [os.devnull] * 6
