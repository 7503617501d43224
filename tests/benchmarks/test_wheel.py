"""The benchmarks stay in the repository: the wheel has none of them, and the library imports none."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "unisono"


def test_the_wheel_is_made_of_the_library_only() -> None:
    wheel = (ROOT / "pyproject.toml").read_text().split("[tool.hatch.build.targets.wheel]\n")[1].split("\n[")[0]
    assert wheel.split() == ["packages", "=", '["src/unisono"]']


def test_the_library_has_no_file_of_a_benchmark() -> None:
    own = {path.name for path in SOURCES.rglob("*.py")}
    assert not own & {"mpi.py", "mpi_job.py", "mpi_worker.py", "goals.py", "extras.py", "plot.py"}
    assert not [path for path in SOURCES.rglob("*.*") if "benchmark" in path.name and path.parent.name != "__pycache__"]


EXTRAS = {"mpi_messages.py": "mpi4py", "stores.py": "mpi4py"}
"""What files import late, for who has asked for it: extras of the package."""


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
            found = {name.partition(".")[0] for name in names} & {"benchmarks", "mpi4py", "matplotlib"}
            late = isinstance(node, ast.Import | ast.ImportFrom) and node.col_offset > 0
            assert found <= ({EXTRAS.get(path.name)} if late else set()), path
