"""What no linter checks: tables need no torch, errors are as drawn, and the stub fits the code."""

import ast
import inspect
from pathlib import Path

import pytest

import unisono
from tests.support.programs import run_python
from unisono.base import errors

PACKAGE = Path(unisono.__file__).parent
TABLES = [path.relative_to(PACKAGE) for part in ("base", "schedule") for path in (PACKAGE / part).rglob("*.py")]


@pytest.mark.quick
@pytest.mark.cold
def test_tables_import_neither_torch_nor_numba() -> None:
    modules = [".".join(("unisono", *path.with_suffix("").parts)).removesuffix(".__init__") for path in TABLES]
    assert len(modules) > 50
    code = (
        f"import importlib, sys\nfor m in {modules}: importlib.import_module(m)\n"
        "print([m for m in ('torch', 'numba') if m in sys.modules])"
    )
    assert run_python("-c", code, check=True).stdout.strip() == "[]"


@pytest.mark.quick
def test_error_tree_is_as_drawn() -> None:
    """The documentation shows the drawing, and the errors in its order."""
    above: list[type] = [errors.UnisonoError]
    drawn = [line.partition("──") for line in (errors.__doc__ or "").splitlines() if "──" in line]
    for before, _, after in drawn:
        del above[len(before) // 4 :]
        above.append(getattr(errors, after.split()[0]))
        assert above[-1].__mro__[1] is above[-2]
    assert {after.split()[0] for _, _, after in drawn} == {*errors.__all__} - {"UnisonoError"}


STUB = ast.parse((Path(unisono.__file__).parent / "__init__.pyi").read_text())
OVERLOADS = [node for node in STUB.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize(("name", "node"), [(f"{node.name}, line {node.lineno}", node) for node in OVERLOADS])
def test_stub_has_the_arguments_of_the_code(name: str, node: ast.FunctionDef) -> None:
    code = inspect.signature(getattr(unisono, node.name)).parameters.values()
    stub = [argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]]
    assert stub == [parameter.name for parameter in code]
    optional = node.args.args[len(node.args.args) - len(node.args.defaults) :]
    keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    given = {argument.arg for argument in optional} | {argument.arg for argument, default in keywords if default}
    required = {parameter.name for parameter in code if parameter.default is parameter.empty}
    assert not given & required
    assert {*stub} - given - required <= {"async_op", "return_exceptions", "tensor"}  # which some results need


def test_stub_has_the_names_of_the_code() -> None:
    imported = [alias.name for node in STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert {*unisono.__all__} <= {*imported, *(node.name for node in OVERLOADS), *dir(unisono)}
    exported = next(
        node for node in STUB.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert sorted(ast.literal_eval(exported.value)) == sorted(unisono.__all__)
