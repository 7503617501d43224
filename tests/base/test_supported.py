"""On other systems and processors `import unisono` says in one sentence what is missing, and ends no program."""

import pytest

from tests.support.programs import run_python

pytestmark = pytest.mark.cold

ELSEWHERE = """
import os, platform, sys
sys.platform = {system!r}
platform.system, platform.machine = lambda: {name!r}, lambda: {machine!r}
os.uname = lambda: os.uname_result(('', '', '25.1', '', {machine!r}))
import unisono
from unisono.schedule import prove
from unisono.schedule.algorithms import CATALOGUE
prove(CATALOGUE["all_reduce.ring"].schedule(4))
print("proved")
if sys.platform != "linux":
    unisono.run(print, ranks=1)
"""
MISSING = "memfd, futexes and process descriptors are missing"
EMULATED, UNTRIED = "its kernels have been tried there in an emulator only", "its kernels have not been tried there"


@pytest.mark.parametrize(
    ("system", "name", "machine", "missing"),
    [
        ("darwin", "Darwin", "arm64", MISSING),
        ("win32", "Windows", "AMD64", MISSING),
        ("linux", "Linux", "aarch64", EMULATED),
        ("linux", "Linux", "riscv64", UNTRIED),
    ],
)
def test_other_systems_are_told_what_is_missing(system: str, name: str, machine: str, missing: str) -> None:
    """Tables are proved there, too; without Linux there are no ranks."""
    done = run_python("-c", ELSEWHERE.format(system=system, name=name, machine=machine))
    sentence = f"unisono is made for Linux on x86-64, and this is {name} on {machine}: {missing}"
    assert done.stderr.count(f"RuntimeWarning: {sentence}. torch's Gloo runs here.") == 1
    assert done.stdout.startswith("proved\n")
    assert (f"\nImportError: {sentence}" in done.stderr) == bool(done.returncode) == (system != "linux")
