"""The house rules, as tests: who may import whom, how modules look, what prose must be there."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import unisono

ROOT = Path(unisono.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]

FLOORS = [
    {"garbage", "processor", "records"},
    {"errors", "wait_chain"},
    {"control_groups", "measured", "units"},
    {"link"},
    {"config", "channel"},
    {"schedule"},
    {"algorithms", "carriers", "draw"},
    {"engine"},
    {"across", "observe"},
    {"sentinel"},
    {"membership"},
    {"local_world", "machine"},
    {"choose", "watch"},
    {"codec", "ops", "overlap", "simulate", "sub_groups", "work"},
    {"arguments"},
    {"dispatch"},
    {"collectives", "p2p"},
    {"coalesced", "groups", "objects", "traced"},
    {"autograd", "compression", "growth", "modules", "recovery"},
    {"cli", "ray", "testing", "torch_backend"},
    {"__main__"},
]
"""From the ground up; a room imports from the floors below it only. The package itself only names what it exports."""

TORCH_FREE = {
    "garbage", "processor", "records", "errors", "control_groups", "measured", "units", "link", "config", "schedule",
    "algorithms", "draw", "choose", "simulate",
}  # fmt: skip

CONSTRUCTORS = {f"torch.{name}" for name in ("arange", "empty", "full", "ones", "rand", "randn", "tensor", "zeros")}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def floor(name: str) -> int:
    return next(k for k, rooms in enumerate(FLOORS) if name in rooms)


def imported_rooms(path: Path) -> set[str]:
    """The rooms of this package that a module imports, at its top or inside functions, but not for types only."""
    package = ["unisono", *path.relative_to(ROOT).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = [*base, *(node.module or "").split(".")] if node.module else base
            targets = [[*full, alias.name] for alias in node.names] if len(full) == 1 else [full]
            found |= {target[1] for target in targets if target[0] == "unisono" and len(target) > 1}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "unisono" and len(parts) > 1:
                    found.add(parts[1])
    return {name for name in found if (ROOT / name).is_dir() or (ROOT / f"{name}.py").exists()}


def test_the_floors_are_of_rooms_that_exist() -> None:
    assert {name for rooms in FLOORS for name in rooms} | {"__init__"} == set(map(room, FILES))
    assert {name for rooms in FLOORS for name in rooms} > TORCH_FREE


def imported_files(path: Path) -> set[Path]:
    """The files of this package that a module imports at its top, and not for types only."""
    package = ["unisono", *path.relative_to(ROOT).parts[:-1]]
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module or "").split(".") * bool(node.module)
            for target in [base, *([*base, alias.name] for alias in node.names)]:
                place = ROOT.joinpath(*target[1:])
                found |= {file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()}
    return found - {path, ROOT / "__init__.py"}


def test_no_files_import_each_other_in_a_circle() -> None:
    """A package's `__init__` stands for nothing here: it collects what its files have."""
    graph = {path: {other for other in imported_files(path) if other.name != "__init__.py"} for path in FILES}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(str(path.relative_to(ROOT)) for path in error.args[1]))


def test_one_word_is_one_idea() -> None:
    """No two classes of the package have one name."""
    names = [
        node.name
        for path in FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert not {name for name in names if names.count(name) > 1}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_imports_point_down(path: Path) -> None:
    mine = room(path)
    if mine == "__init__":
        return
    for other in imported_rooms(path) - {mine}:
        assert floor(other) < floor(mine), f"{mine} (floor {floor(mine)}) imports {other} (floor {floor(other)})"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_new_tensors_are_the_cpu_s_whatever_a_program_s_default_is(path: Path) -> None:
    if room(path) in ("cli", "testing"):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CONSTRUCTORS:
            assert any(keyword.arg == "device" for keyword in node.keywords), f"line {node.lineno}: device=?"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_module_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400, "which concept has no name yet?"
    assert ast.get_docstring(ast.parse(text)), "no docstring"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_surfaces_are_explicit(path: Path) -> None:
    if path in (ROOT / "__main__.py", ROOT / "__init__.py"):  # the package's surface is its table of names
        return
    tree = ast.parse(path.read_text())
    public = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    lists = [
        [ast.literal_eval(item) for item in node.value.elts]
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.List)
        and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert lists, "no __all__"  # its order is ruff's affair (RUF022)
    assert set(public) <= set(lists[0]), f"public but not in __all__: {sorted(set(public) - set(lists[0]))}"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_public_functions_have_docstrings(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


@pytest.mark.parametrize("name", sorted(unisono.__all__))
def test_every_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(unisono, name)
    assert value.__doc__


def test_what_needs_no_tensors_imports_neither_torch_nor_numba() -> None:
    modules = [
        ".".join(["unisono", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
        for path in FILES
        if room(path) in TORCH_FREE
    ]
    code = (
        f"import importlib, sys\nfor m in {modules}: importlib.import_module(m)\n"
        "print([m for m in ('torch', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_error_tree_is_as_drawn() -> None:
    errors = importlib.import_module("unisono.base.errors")
    drawn = {
        line.split("──")[1].split()[0]: line.index("──") for line in (errors.__doc__ or "").splitlines() if "──" in line
    }
    assert set(drawn) == set(errors.__all__) - {"UnisonoError"}
    lines = [line for line in (errors.__doc__ or "").splitlines() if "──" in line]
    above: list[tuple[int, str]] = [(-1, "UnisonoError")]
    for line in lines:
        depth, name = line.index("──"), line.split("──")[1].split()[0]
        while above[-1][0] >= depth:
            above.pop()
        assert getattr(errors, name).__mro__[1] is getattr(errors, above[-1][1])
        above.append((depth, name))
