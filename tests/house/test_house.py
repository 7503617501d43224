"""What no linter checks: tables need no torch, and errors are as drawn."""

from pathlib import Path

import pytest

import unisono
from tests.support.programs import run_python
from unisono.base import errors

pytestmark = pytest.mark.quick

ROOT = Path(unisono.__file__).parent
TABLES = [path.relative_to(ROOT) for package in ("base", "schedule") for path in (ROOT / package).rglob("*.py")]


@pytest.mark.cold
def test_tables_import_neither_torch_nor_numba() -> None:
    modules = [".".join(("unisono", *path.with_suffix("").parts)).removesuffix(".__init__") for path in TABLES]
    assert len(modules) > 50
    code = (
        f"import importlib, sys\nfor m in {modules}: importlib.import_module(m)\n"
        "print([m for m in ('torch', 'numba') if m in sys.modules])"
    )
    assert run_python("-c", code, check=True).stdout.strip() == "[]"


def test_error_tree_is_as_drawn() -> None:
    """The documentation shows the drawing, and the errors in its order."""
    above: list[type] = [errors.UnisonoError]
    drawn = [line.partition("──") for line in (errors.__doc__ or "").splitlines() if "──" in line]
    for before, _, after in drawn:
        del above[len(before) // 4 :]
        above.append(getattr(errors, after.split()[0]))
        assert above[-1].__mro__[1] is above[-2]
    assert {after.split()[0] for _, _, after in drawn} == {*errors.__all__} - {"UnisonoError"}
