"""The mutants fit the sources. `python -m tests.mutants` runs them."""

import shutil
from pathlib import Path

import pytest

from .__main__ import MUTANTS, ROOT, Mutant, apply


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fits_the_sources(mutant: Mutant, tmp_path: Path) -> None:
    file = tmp_path / "unisono" / mutant.file
    file.parent.mkdir(parents=True)
    shutil.copy(ROOT / "src" / "unisono" / mutant.file, file)
    apply(mutant, tmp_path)
    compile(file.read_text(), str(file), "exec")
    assert (ROOT / "tests" / mutant.tests).exists()
