"""The house rules, as tests: how modules look, what prose must be there, what loads what."""

import ast
import importlib
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import unisono
from tests.support.programs import run_python

pytestmark = pytest.mark.quick

ROOT = Path(unisono.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py"))

TORCH_FREE = {"base", "schedule"}

MIRRORED = ("schedule/algorithms/", "calls/collectives/", "errors.py", "base/errors.py")
"""The first two have a file per collective, of the same name. Every other file name is there once."""

CONSTRUCTORS = {f"torch.{name}" for name in ("arange", "empty", "full", "ones", "rand", "randn", "tensor", "zeros")}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def module(path: Path) -> str:
    return ".".join(["unisono", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


MODULES = {module(path): path for path in FILES}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


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
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert not {name for name in names if names.count(name) > 1}


def devices(path: Path, tree: ast.Module) -> Iterator[str]:
    """New tensors are the CPU's, whatever a program's default is."""
    if room(path) == "tools":
        return
    for node in ast.walk(tree):
        new = isinstance(node, ast.Call) and ast.unparse(node.func) in CONSTRUCTORS
        if new and not any(keyword.arg == "device" for keyword in node.keywords):
            yield f"line {node.lineno}: device=?"


def length(path: Path, tree: ast.Module) -> Iterator[str]:
    """A module is short and says what it is."""
    lines = len(path.read_text().splitlines())
    if lines > 400:
        yield f"{lines} lines: which concept has no name yet?"
    if not ast.get_docstring(tree):
        yield "no docstring"


def surface(path: Path, tree: ast.Module) -> Iterator[str]:
    """Packages and the tree of errors list what they offer. Elsewhere names without an underscore are public."""
    lists = any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" for node in tree.body)
    if lists and path.name != "__init__.py" and path != ROOT / "base" / "errors.py":
        yield "__all__ belongs to packages"


def strangers(path: Path, tree: ast.Module) -> Iterator[str]:
    """The library imports nothing of this repository that is not in the wheel."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        yield from (name for name in names if name.split(".")[0] in ("benchmarks", "examples", "tests"))


LISTED = {
    name.value
    for tree in TREES.values()
    for node in tree.body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    for name in ast.walk(node.value)
    if isinstance(name, ast.Constant)
}


def docstrings(path: Path, tree: ast.Module) -> Iterator[str]:
    """Functions and classes that a package offers have docstrings. Others have one if it says more than the name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in LISTED and not ast.get_docstring(node):
            yield f"{node.name} has no docstring"


@pytest.mark.parametrize("rule", [devices, length, surface, strangers, docstrings])
def test_every_module_keeps_the_rule(rule: Callable[[Path, ast.Module], Iterator[str]]) -> None:
    assert not [
        f"{path.relative_to(ROOT)}: {what}" for name, path in MODULES.items() for what in rule(path, TREES[name])
    ]


def test_every_public_name_is_there_and_documented() -> None:
    assert not [name for name in unisono.__all__ if not getattr(unisono, name).__doc__]


@pytest.mark.cold
def test_what_needs_no_tensors_imports_neither_torch_nor_numba() -> None:
    modules = [module(path) for path in FILES if room(path) in TORCH_FREE]
    code = (
        f"import importlib, sys\nfor m in {modules}: importlib.import_module(m)\n"
        "print([m for m in ('torch', 'numba') if m in sys.modules])"
    )
    done = run_python("-c", code, check=True)
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
