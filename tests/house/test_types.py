"""The types that users see: pyright, beside mypy, accepts the examples, and the stub fits what runs."""

import ast
import inspect
import json
import os
import sys
from pathlib import Path

import pytest

import unisono
from tests.support.programs import run_python

ROOT = Path(__file__).parents[2]
SOURCE = str(Path(unisono.__file__).parents[1])


@pytest.mark.long
def test_pyright_accepts_the_examples(tmp_path: Path) -> None:
    pytest.importorskip("basedpyright")
    settings = {
        "include": [str(ROOT / "examples"), str(ROOT / "tests" / "house" / "user_types.py")],
        "extraPaths": [SOURCE, str(ROOT / "examples" / "tested")], "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
    }  # fmt: skip
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = run_python("-m", "basedpyright", "--pythonpath", sys.executable, cwd=tmp_path, env=environment, timeout=390)
    assert done.returncode == 0, done.stdout
    assert "0 errors" in done.stdout


STUB = ast.parse((Path(unisono.__file__).parent / "__init__.pyi").read_text())
OVERLOADS = [node for node in STUB.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("node", OVERLOADS, ids=[f"{node.name}, line {node.lineno}" for node in OVERLOADS])
def test_stub_has_the_arguments_of_the_code(node: ast.FunctionDef) -> None:
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
