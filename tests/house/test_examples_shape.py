"""How the examples look: short, on their own, and each says what it teaches and how to run it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples").glob("*.py"))
TESTED = (ROOT / "tests" / "house" / "test_examples_run.py").read_text()

each = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_there_are_examples() -> None:
    assert len(FILES) >= 7


@each
def test_it_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60


@each
def test_it_says_what_one_learns_and_how_to_run_it(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    title, blank, *rest = said.splitlines()
    assert title.endswith((".", ":"))
    assert not blank
    assert f"    python examples/{path.name}" in rest


@each
def test_it_needs_nothing_but_torch_and_unisono(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module or "")
    roots = {name.partition(".")[0] for name in imported}
    assert "unisono" in roots
    assert roots <= sys.stdlib_module_names | {"torch", "numpy", "unisono"}


@each
def test_its_functions_say_what_they_do(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            assert ast.get_docstring(node), node.name
            assert node.returns, node.name


@each
def test_it_is_run_by_a_test(path: Path) -> None:
    assert f"def test_{path.stem}(" in TESTED
