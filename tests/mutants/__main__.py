"""Mistakes in kernels and in the vote, made in a copy of the sources: a test must find each.

    python -m tests.mutants [a part of a name ...]

Prints a line for each mutant whose name has one of these parts. Ends with 1 if the tests of one pass.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """A mistake. file: below src/unisono. tests: below tests; one of its tests must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str

    def mistaken(self, text: str) -> str:
        """The file with the mistake. ValueError: the text to be changed is not there once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has its text {text.count(self.old)} times; change the table")
        return text.replace(self.old, self.new)


_MESSAGES, _LANES, _AGREEMENT = "engine/kernels/messages.py", "engine/kernels/lanes.py", "ranks/group/agreement.py"
_COMPILED, _KERNELS = "engine/kernels/compiled.py", "engine/reducers/kernels.py"
_HOSTS, _VOTES = "engine/test_far_rehearsal.py", "ranks/group/test_agreement.py"
_ORDERS = "engine/test_lanes.py"

MUTANTS = [
    Mutant("message of another segment", _MESSAGES, " + segment * _SEGMENT_ODD", "", _HOSTS),
    Mutant("forgotten messages", _MESSAGES, "get(state, StateWord.SENDING) + 1)", "0)", _HOSTS),
    Mutant("half that has not left", _MESSAGES, "have_left(plan, segment + 1,", "have_left(plan, segment,", _HOSTS),
    Mutant("first piece copied twice", _LANES, " + k * piece * get(plan, PlanWord.ITEM)", "", _ORDERS),
    Mutant("last piece too long", _LANES, "min(piece, get(lanes, LaneWord.COUNT) - k * piece)", "piece", _ORDERS),
    Mutant("rest left out", _LANES, "pieces = (n + piece - 1) // piece", "pieces = n // piece", _ORDERS),
    Mutant("move ends early", _LANES, "LaneWord.FINISHED) < due:", "LaneWord.FINISHED) < due - pieces:", _ORDERS),
    Mutant("two calls at once", _LANES, "LaneWord.BUSY, 1) != 0:", "LaneWord.BUSY, 1) > 1:", _ORDERS),
    Mutant("helper sleeps", _LANES, "LaneWord.SLEEPERS) > 0:\n", "LaneWord.SLEEPERS) > 1:\n", _ORDERS),
    Mutant("piece beyond the last", _LANES, "if job & _MOST >= job >> _", "if job & _MOST > job >> _", _ORDERS),
    Mutant("earlier status kept", _LANES, "    put(lanes, LaneWord.STATUS, DONE)\n", "", _ORDERS),
    Mutant(
        "wrapped average",
        _KERNELS,
        "return _divide_wide(element, b, v, n, ranks)",
        "v = b.trunc(v, vector(_I64, n)); return b.sext(b.sdiv(v, _spread(b, ranks, _I64, n)), vector(_I128, n))",
        "engine/test_reducers.py",
    ),
    Mutant(
        "literal compiled", _COMPILED, "[types.unliteral(one) for one in args]", "args", "engine/test_machine_code.py"
    ),
    Mutant("own wish voted", _AGREEMENT, "choice=last.choice if last.voted else mine", "choice=mine", _VOTES),
    Mutant("later ballot ignored", _AGREEMENT, "if mine.ballot < newest or not mine", "if not mine", _VOTES),
]


def failed_test(mutant: Mutant, folder: Path) -> str:
    """The first test that fails with the mistake, in a copy of the repository; "": none."""
    for name in ("src", "tests", "benchmarks", "examples"):  # with __pycache__, where machine code is found
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("results"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    file = folder / "src" / "unisono" / mutant.file
    file.write_text(mutant.mistaken(file.read_text()))
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-m", "pytest", "-x", "--no-header", "--tb=no", "-rfE", f"tests/{mutant.tests}"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "" if not done.returncode else failed[0] if failed else f"{done.stdout}{done.stderr}"[-300:]


if __name__ == "__main__":
    missed = 0
    for mutant in (one for one in MUTANTS if any(part in one.name for part in sys.argv[1:] or [""])):
        with TemporaryDirectory() as folder:
            failed = failed_test(mutant, Path(folder))
        missed += not failed
        print(f"{mutant.name}: {failed or 'MISSED'}", flush=True)
    sys.exit(missed > 0)
