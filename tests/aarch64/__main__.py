"""`python -m tests.aarch64`: tests on AArch64, which QEMU emulates. What cannot be had here is said, and no test runs.

    python -m tests.aarch64 tests/engine -k mailbox

runs these tests, with these options of pytest. Without arguments it runs `TESTS`.

The emulator translates the instructions of each process, so Numba compiles, kernels run and ranks meet as they do on
AArch64, with its numbers of system calls. What it does not show:

- The order of memory is that of the processor below. So an order that is missing is not found: for that there are
  tests/engine/test_weak_memory.py, test_weak_kernels.py, test_weak_logs.py and test_aarch64_code.py.
- Pages have 4 KiB, as below. For pages of 16 and 64 KiB there is tests/engine/test_page_sizes.py.
- QEMU has no `process_vm_readv`, so ranks stage private tensors; no robust lists, so a sentinel's end is not seen; and
  it does not tell how a process has ended that is no child (PIDFD_GET_INFO).
- The files of machine code that need no linker: for AArch64 there are none.
- Its counter of cycles counts microseconds, so a short call seems to have no end in the log of calls.
- Speed.
"""

import subprocess
import sys
from pathlib import Path

from tests.aarch64.system import PYTHON, Missing, System

ROOT = Path(__file__).parents[2]
TESTS = (
    *("tests/quick/test_calls.py", "tests/integrations/torch/test_calls.py", "tests/ranks/group/test_survivors.py"),
    *(
        f"tests/engine/test_{name}.py"
        for name in ("arena", "board", "custom_ops", "mailbox", "withdrawn_messages", "reducers", "waiting")
    ),
)
"""Calls, with the backend of torch.distributed, too; ranks that die, and the agreement of the others; and what the
engine's parts do. Tables are proved by the same Python everywhere."""
LIMIT_S, RUN_S = 600, 3600
"""Of a test, and of the run: QEMU may itself be at fault, and then the test's own limit does nothing."""
OPTIONS = (
    *("-p", "no:cacheprovider", "-o", f"timeout={LIMIT_S}", "--ranks-timeout", f"{LIMIT_S}", "-m", "not long"),
    "-vv",  # names the tests: the last one has not ended, if the run takes too long
    *("-W", "ignore:unisono is made for Linux on x86-64"),
    *(
        "--deselect",
        "tests/engine/test_arena.py::test_limits_of_address_space_and_of_files[ulimit -v-the address space]",
    ),
)
"""The test that is left out: QEMU takes no limit of the address space from the program that it runs."""


def main(arguments: list[str]) -> int:
    try:
        system = System(ROOT / ".venv/aarch64")
        system.make(ROOT)
    except Missing as missing:
        print(f"Skipped: no AArch64 can be emulated here: {missing}")
        return 0
    print(f"Tests on AArch64, emulated by {system.emulator_version()}", flush=True)
    command = system.command(ROOT, f"python{PYTHON}", "-m", "pytest", *OPTIONS, *(arguments or TESTS))
    try:
        return subprocess.run(command, env=system.environment(), timeout=RUN_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"The tests took more than {RUN_S} s. All processes of the emulator have been killed.")
        return 1


sys.exit(main(sys.argv[1:]))
