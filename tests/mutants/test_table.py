"""The mutants of mended mistakes fit the sources, and name tests. `python -m tests.mutants` runs them."""

import shutil
from pathlib import Path

import pytest

from .__main__ import ROOT, apply
from .fixed import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_sources(mutant: Mutant, tmp_path: Path) -> None:
    file = tmp_path / "unisono" / mutant.file
    file.parent.mkdir(parents=True)
    shutil.copy(ROOT / "src" / "unisono" / mutant.file, file)
    apply(mutant, tmp_path)
    compile(file.read_text(), str(file), "exec")
    for test in mutant.tests:
        path, _, function = test.partition("::")
        assert (ROOT / "tests" / path).exists()
        assert not function or f"def {function}(" in (ROOT / "tests" / path).read_text()


def test_a_mutant_whose_text_has_gone_is_told(tmp_path: Path) -> None:
    file = tmp_path / "unisono" / "one.py"
    file.parent.mkdir()
    file.write_text("a = 1\n")
    with pytest.raises(ValueError, match=r"one.py has its text 0 times; change the table"):
        apply(Mutant("some", "one.py", "b = 2", "b = 3", ()), tmp_path)
