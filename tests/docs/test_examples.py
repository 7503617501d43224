"""Every example of the pages is run, and prints what the page shows."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.markdown import ROOT, Block, blocks, run

PAGES = [ROOT / "docs" / "start.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
BLOCKS = [block for page in PAGES for block in blocks(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]
COMMANDS = [
    line.removeprefix("$ ")
    for block in BLOCKS
    if block.language == "console"
    for line in block.text.splitlines()
    if line.startswith("$ ")
]


def test_every_page_has_examples_and_every_block_is_known() -> None:
    assert {block.page for block in PYTHON} == {str(page.relative_to(ROOT)) for page in PAGES}
    assert {block.language for block in BLOCKS} <= {"python", "output", "bash", "console"}
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python(block: Block, tmp_path: Path) -> None:
    printed = run(block, tmp_path)
    if block.output is not None:
        assert printed == block.output


@pytest.mark.parametrize("command", COMMANDS)
def test_command_lines(command: str, tmp_path: Path) -> None:
    program, *words = shlex.split(command)
    assert program == "unisono"
    done = subprocess.run(
        [sys.executable, "-m", program, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
