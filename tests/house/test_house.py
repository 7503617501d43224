"""What no linter checks: files are short, tensors name their device, tables need no torch, errors are as drawn."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import unisono
from tests.support.programs import run_python
from unisono.base import errors

pytestmark = pytest.mark.quick

ROOT = Path(unisono.__file__).parent
FILES = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.py")}
CONSTRUCTORS = {f"torch.{name}" for name in ("arange", "empty", "full", "ones", "rand", "randn", "tensor", "zeros")}


def test_files_are_short() -> None:
    assert len(FILES) > 100
    assert not {file for file, text in FILES.items() if len(text.splitlines()) > 400}


def test_new_tensors_ignore_the_default_device() -> None:
    for file, text in FILES.items():
        for node in ast.walk(ast.parse(text)) if not file.startswith("tools/") else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in CONSTRUCTORS:
                assert any(keyword.arg == "device" for keyword in node.keywords), f"{file}:{node.lineno}"


def test_public_names_have_docstrings() -> None:
    assert not [name for name in unisono.__all__ if not getattr(unisono, name).__doc__]


@pytest.mark.parametrize("name", [name for name in unisono.__all__ if inspect.isroutine(getattr(unisono, name))])
def test_documented_arguments_exist(name: str) -> None:
    """Editors and the documentation read them from the docstring."""
    function = getattr(unisono, name)
    _, found, arguments = inspect.cleandoc(function.__doc__).partition("\nArgs:\n")
    named = re.findall(r"^    (\w+(?:, \w+)*): ", arguments.partition("\n\n")[0], re.MULTILINE)
    names = {name for names in named for name in names.split(", ")}
    assert names <= {*inspect.signature(function).parameters}
    assert bool(names) == bool(found)


@pytest.mark.cold
def test_tables_import_neither_torch_nor_numba() -> None:
    paths = [Path(file).with_suffix("") for file in FILES if file.startswith(("base/", "schedule/"))]
    modules = [".".join(("unisono", *path.parts)).removesuffix(".__init__") for path in paths]
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
