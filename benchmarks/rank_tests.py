"""How long tests on four ranks take: with the plug-in for pytest, over unisono and over Gloo, and in other ways.

    python -m benchmarks.rank_tests                 100 tests where processes stay from test to test, 10 elsewhere
    python -m benchmarks.rank_tests 100 100         100 tests in each way: half an hour

Each test sums one tensor. Each way is a session of pytest of its own: the seconds are those of the whole command, also
what it takes to start.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

_PLUGIN = """
import pytest, torch, {module} as calls

@pytest.mark.parametrize("number", range({tests}))
@pytest.mark.ranks(4{backend})
def test_sum(number):
    tensor = torch.tensor([calls.get_rank()])
    calls.all_reduce(tensor)
    assert tensor == 6
"""

_MULTI_PROCESS = """
import torch, torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestSum(MultiProcessTestCase):
    world_size = 4

    def setUp(self):
        super().setUp()
        self._spawn_processes()

def body(self):
    dist.init_process_group("gloo", f"file://{{self.file_name}}", rank=self.rank, world_size=4)
    tensor = torch.tensor([self.rank])
    dist.all_reduce(tensor)
    assert tensor == 6
    dist.destroy_process_group()

for number in range({tests}):
    setattr(TestSum, f"test_sum_{{number}}", body)
"""

_CONTINUOUS = """
import torch, torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest

class TestSum(MultiProcContinuousTest):
    world_size = 4

    @classmethod
    def backend_str(cls):
        return "gloo"

def body(self):
    tensor = torch.tensor([self.rank])
    dist.all_reduce(tensor)
    assert tensor == 6

for number in range({tests}):
    setattr(TestSum, f"test_sum_{{number}}", body)
"""

_SPAWN = """
import pytest, torch, torch.distributed as dist, torch.multiprocessing as mp

def body(rank, meeting):
    dist.init_process_group("gloo", f"file://{{meeting}}", rank=rank, world_size=4)
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor)
    assert tensor == 6
    dist.destroy_process_group()

@pytest.mark.parametrize("number", range({tests}))
def test_sum(number, tmp_path):
    mp.spawn(body, (tmp_path / "meeting",), nprocs=4)
"""

_ANEW = "processes for each test"
"""How the names of the ways end that start four processes for each test."""
_DIST = "torch.distributed"
WAYS = {
    "the plug-in, unisono's calls": _PLUGIN.replace("{module}", "unisono").replace("{backend}", ""),
    "the plug-in, Gloo": _PLUGIN.replace("{module}", _DIST).replace("{backend}", ', backend="gloo"'),
    "MultiProcContinuousTest, Gloo": _CONTINUOUS,
    f"MultiProcessTestCase, Gloo, {_ANEW}": _MULTI_PROCESS,
    f"mp.spawn, Gloo, {_ANEW}": _SPAWN,
}


def seconds(text: str, tests: int) -> float:
    """How long pytest takes with a file of so many tests, which must all pass."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_sum.py").write_text(text.format(tests=tests))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "unisono.tools.pytest_plugin", "-p", "no:cacheprovider"]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        took = time.perf_counter() - start
    if done.returncode != 0 or f"{tests} passed" not in done.stdout:
        raise RuntimeError(done.stdout + done.stderr)
    return took


def main(warm: int = 100, anew: int = 10) -> None:
    """Print a line for each way."""
    for name, text in WAYS.items():
        tests = anew if name.endswith(_ANEW) else warm
        took = seconds(text, tests)
        print(f"{name:48} {tests:4} tests {took:7.1f} s {took / tests * 1e3:8.0f} ms a test", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
