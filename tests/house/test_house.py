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
    {"base"},
    {"schedule"},
    {"engine"},
    {"observe"},
    {"hosts"},
    {"ranks"},
    {"calls"},
    {"integrations", "tools"},
]
"""The rooms, from the ground up. A room imports from the floors below it only. The package only names what it has."""

ENTRANCES = {"__init__.py", "__init__.pyi", "__main__.py", "py.typed"}

TORCH_FREE = {"base", "schedule"}

MIRRORED = ("schedule/algorithms/", "calls/collectives/")
"""Both have a file per collective, of the same name. Every other file name is there once."""

CONSTRUCTORS = {f"torch.{name}" for name in ("arange", "empty", "full", "ones", "rand", "randn", "tensor", "zeros")}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def module(path: Path) -> str:
    return ".".join(["unisono", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


MODULES = {module(path): path for path in FILES}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def floor(name: str) -> int:
    return next(k for k, rooms in enumerate(FLOORS) if name in rooms)


def exported(name: str) -> set[str]:
    """The names that a module defines or imports at its top."""
    return {
        alias.asname or alias.name
        for node in TREES[name].body
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
    } | {node.name for node in TREES[name].body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def imported(name: str) -> set[str]:
    """The modules that a module imports anywhere: at its top, inside functions, for types, by `import_module`."""
    package = name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            above = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inside = f"{above}.{alias.name}"
                is_module = inside in MODULES and alias.name not in exported(above)
                found.add(inside if is_module else above)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return {other for other in found if other in MODULES} - {name, "unisono"}


IMPORTED = {name: imported(name) for name in MODULES}


def test_there_are_nine_rooms() -> None:
    rooms = {name for names in FLOORS for name in names}
    assert len(rooms) == 9
    assert {path.name for path in ROOT.iterdir() if path.name != "__pycache__"} == rooms | ENTRANCES


def test_no_files_import_each_other_in_a_circle() -> None:
    """No import is left out: a tool that reads the code finds no circle either."""
    try:
        tuple(TopologicalSorter(IMPORTED).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_packages_load_each_other_in_a_circle() -> None:
    """Python imports a package before a module in it. Whichever module a program imports first, it can be imported."""
    graph = {
        name: others | {above for other in others for above in packages(other) - packages(f"{name}.")}
        for name, others in IMPORTED.items()
    }
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def packages(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:k]) for k in range(2, len(parts))}


def test_one_name_is_one_file() -> None:
    names = [path.name for path in FILES if path.name != "__init__.py"]
    twice = {path for path in FILES if names.count(path.name) > 1}
    assert all(str(path.relative_to(ROOT)).startswith(MIRRORED) for path in twice), sorted(map(str, twice))


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
    if path.parent == ROOT:
        return
    mine = room(path)
    for other in sorted({room(MODULES[name]) for name in IMPORTED[module(path)]} - {mine}):
        assert floor(other) < floor(mine), f"{mine} (floor {floor(mine)}) imports {other} (floor {floor(other)})"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_new_tensors_are_the_cpu_s_whatever_a_program_s_default_is(path: Path) -> None:
    if room(path) == "tools":
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
    modules = [module(path) for path in FILES if room(path) in TORCH_FREE]
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
