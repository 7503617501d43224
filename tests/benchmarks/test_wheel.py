"""The benchmarks stay in the repository: the wheel has none of them, and the library imports none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "unisono"


def test_the_wheel_is_made_of_the_library_only() -> None:
    wheel = (ROOT / "pyproject.toml").read_text().split("[tool.hatch.build.targets.wheel]\n")[1].split("\n[")[0]
    assert wheel.split() == ["packages", "=", '["src/unisono"]']


def test_no_module_of_the_library_is_named_like_one_of_the_benchmarks() -> None:
    benchmarks = {path.stem for path in (ROOT / "benchmarks").rglob("*.py")} - {"__init__", "__main__"}
    assert {"mpi", "rendezvous", "mpi_worker", "goals", "supported_calls", "torch_backend"} <= benchmarks | {
        path.name for path in (ROOT / "benchmarks").iterdir()
    }
    own = {path.stem for path in (SOURCES / "cli").rglob("*.py")}
    assert not own & benchmarks
    assert not [path for path in SOURCES.rglob("*") if re.search(r"benchmark|mpi", path.name)]


def test_the_library_imports_no_benchmark_and_no_other_library_s_bindings() -> None:
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
            assert not {name.partition(".")[0] for name in names} & {"benchmarks", "mpi4py", "matplotlib"}, path
