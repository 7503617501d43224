"""Compiled functions on disk: renewed when any file changes whose code they contain."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unisono.engine import compiled

ENGINE = Path(compiled.__file__).parent
FILES = [path for path in ENGINE.rglob("*.py") if "@compiled\n" in path.read_text() and path.stem != "compiled"]

USER = """
from .compiled import compiled, entry_point, on_disk
from .waiting import add

@compiled
def use(x):
    return add(x)

print(on_disk(use), entry_point(use)(40), on_disk(use))
"""


def test_a_change_in_an_inlined_file_reaches_the_functions_of_other_files(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    shutil.copy(compiled.__file__, room)
    for name in ("__init__", *compiled.INLINED):
        (room / f"{name}.py").write_text("")
    (room / "user.py").write_text(USER)

    def run(step: int) -> str:
        (room / "waiting.py").write_text(
            f"from .compiled import compiled\n\n@compiled\ndef add(x):\n    return x + {step}\n"
        )
        command = [sys.executable, "-c", "import room.user"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True).stdout

    assert run(1) == "False 41 True\n"
    assert run(1) == "True 41 True\n"
    assert run(2) == "False 42 True\n"


def test_files_with_compiled_functions_are_found() -> None:
    assert {path.stem for path in FILES} >= {"interpret", "pack", "ring", "waiting"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_compiled_functions_take_nothing_from_files_that_are_not_inlined(path: Path) -> None:
    """Nor does the rest of their file, from which they take constants."""
    imported = {
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level and node.module
    }
    assert imported <= {"compiled", *compiled.INLINED}


def test_entry_points_take_and_return_integers() -> None:
    assert isinstance(compiled.entry_point(_add)(2, 3), int)
    assert compiled.entry_point(_add)(2, 3) == 5


@compiled.compiled
def _add(x, y):  # type: ignore[no-untyped-def]
    return x + y
