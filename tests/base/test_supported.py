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
{then}
"""
MISSING = "memfd, futexes and process descriptors are missing"
EMULATED, UNTRIED = "its kernels have been tried there in an emulator only", "its kernels have not been tried there"


def said_there(system: str, name: str, machine: str, then: str = "") -> tuple[str, str, int]:
    """What a program prints and says on another system, and its exit status. `then`: what it does at last."""
    program = ELSEWHERE.format(system=system, name=name, machine=machine, then=then)
    done = run_python("-c", program)
    return done.stdout, done.stderr, done.returncode


@pytest.mark.parametrize(
    ("system", "name", "machine", "missing"),
    [
        ("darwin", "Darwin", "arm64", MISSING),
        ("win32", "Windows", "AMD64", MISSING),
        ("linux", "Linux", "aarch64", EMULATED),
        ("linux", "Linux", "riscv64", UNTRIED),
    ],
)
def test_import_elsewhere_says_what_is_missing(system: str, name: str, machine: str, missing: str) -> None:
    printed, said, status = said_there(system, name, machine)
    sentence = (
        f"unisono is made for Linux on x86-64, and this is {name} on {machine}: {missing}. torch's Gloo runs here."
    )
    assert said.count(f"RuntimeWarning: {sentence}") == 1
    assert (printed, status) == ("proved\n", 0)


def test_ranks_elsewhere_are_refused() -> None:
    _, said, status = said_there("darwin", "Darwin", "arm64", "unisono.run(print, ranks=2)")
    assert status
    assert f"ImportError: unisono is made for Linux on x86-64, and this is Darwin on arm64: {MISSING}" in said
