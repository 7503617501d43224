"""The benchmarks stay in the repository: the wheel has none of them, and the library imports none."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "unisono"


def test_the_wheel_is_made_of_the_library_only() -> None:
    wheel = (ROOT / "pyproject.toml").read_text().split("[tool.hatch.build.targets.wheel]\n")[1].split("\n[")[0]
    assert wheel.split() == ["packages", "=", '["src/unisono"]']


def test_the_library_has_no_file_of_a_benchmark() -> None:
    own = {path.name for path in SOURCES.rglob("*.py")}
    assert not own & {"mpi.py", "goals.py", "extras.py", "kills.py", "leaks.py", "turns.py"}
    assert not [path for path in SOURCES.rglob("*.*") if "benchmark" in path.name and path.parent.name != "__pycache__"]


EXTRAS = {"mpi_messages.py": "mpi4py", "stores.py": "mpi4py"}
"""What files import late, for who has asked for it: extras of the package."""


def test_the_library_imports_no_benchmark_and_no_other_library_s_bindings() -> None:
    imports = re.compile(r"^( *)(?:from|import) .*?\b(benchmarks|mpi4py|matplotlib)\b", re.MULTILINE)
    texts = [(path.name, path.read_text()) for path in SOURCES.rglob("*.py")]
    found = {(name, word, bool(margin)) for name, text in texts for margin, word in imports.findall(text)}
    assert found == {(name, word, True) for name, word in EXTRAS.items()}
