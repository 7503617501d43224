"""Make mended mistakes again, in a copy of the sources, and see which ring of tests finds each.

    python -m tests.mutants [a part of a name ...]

Prints a line for each whose name has one of these parts: its ring, and the first test that has failed. Ends with 1 if
one is found by none, or by a later ring than the table says.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from .fixed import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
RINGS = {"quick": "quick and not long", "test": "not long", "nightly": ""}


def apply(mutant: Mutant, sources: Path) -> None:
    """Make the mistake in these sources. ValueError: the text to be changed is not there once."""
    file = sources / "unisono" / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} has its text {text.count(mutant.old)} times; change the table")
    file.write_text(text.replace(mutant.old, mutant.new))


def caught(mutant: Mutant, folder: Path) -> tuple[str, str]:
    """The first ring with a test that fails with the mistake, and the end of what it printed; "" if there is none."""
    for name in ("src", "tests", "benchmarks", "examples"):  # with __pycache__, where machine code is found
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("results"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    apply(mutant, folder / "src")
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    printed = ""
    for ring, marks in RINGS.items():
        command = [sys.executable, "-m", "pytest", "-x", "--no-header", "--tb=no", "-rfE", "-m", marks, "--timeout=100"]
        tests = [f"tests/{test}" for test in mutant.tests]
        done = subprocess.run(
            [*command, *tests], cwd=folder, env=environment, capture_output=True, text=True, timeout=1200, check=False
        )
        printed = done.stdout + done.stderr
        if done.returncode not in (0, 5):  # 5: no test of this ring
            failed = [line for line in printed.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return ring, failed[0] if failed else f"the tests have ended with {done.returncode}: {printed[-300:]}"
    return "", printed[-300:]


def main(parts: list[str]) -> int:
    """Run the mutants whose names have one of these parts; all, if there is none."""
    bad, order = 0, [*RINGS]
    for mutant in (one for one in MUTANTS if not parts or any(part in one.name for part in parts)):
        with TemporaryDirectory() as folder:
            ring, failed = caught(mutant, Path(folder))
        late = not ring or order.index(ring) > order.index(mutant.ring)
        bad += late
        print(f"{ring or 'MISSED':8}{'LATE ' if ring and late else ''}{mutant.name}: {failed}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
