"""What no linter checks: tables need no torch, errors are as drawn, the stub fits the code, and `each` tries all."""

import ast
import inspect
import json
import os
import sys
from inspect import signature
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import unisono
from tests.conftest import sample
from tests.support.each import each
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


@pytest.mark.quick
def test_each_tries_all_and_names_failures() -> None:
    tried, values = list[tuple[int, int, str]](), [(1, 2), (3, 3), (5, 6), (7, 7)]

    @each("a, b", values)
    def record(word: str, a: int, b: int) -> None:
        tried.append((a, b, word))
        assert a != b, "equal"

    assert [*signature(record).parameters] == ["word"], "what pytest asks which fixtures it wants"
    with pytest.raises(AssertionError, match=r"(?s)2 of 4 fail:\na=3, b=3: equal.*\na=7, b=7: equal"):
        record(word="one")
    assert tried == [(a, b, "one") for a, b in values]


@pytest.mark.parametrize("axes", [(6, 11), (5, 4, 2), (7,), (2, 2, 2, 2)])
def test_sample_has_each_value_and_keeps_its_seed(axes: tuple[int, ...]) -> None:
    class Case:
        def __init__(self, values: tuple[int, ...]) -> None:
            self.callspec = SimpleNamespace(params=dict(zip(names, values, strict=True)))

    names = "abcd"[: len(axes)]
    cases: list[Any] = [*map(Case, product(*map(range, axes)))]
    drawn = sample(cases, "some")
    for name, length in zip(names, axes, strict=True):
        assert {case.callspec.params[name] for case in drawn} == set(range(length))
    assert len(drawn) <= sum(axes)
    assert sample(cases, "some") == drawn
    assert any(sample(cases, str(seed)) != drawn for seed in range(20))
