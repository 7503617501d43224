"""The mutants fit the sources. `python -m tests.mutants` runs them."""

import pytest

from .__main__ import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fits_the_sources(mutant: Mutant) -> None:
    file = ROOT / "src" / "unisono" / mutant.file
    compile(mutant.mistaken(file.read_text()), str(file), "exec")
    assert (ROOT / "tests" / mutant.tests).exists()
