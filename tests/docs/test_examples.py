"""Every example of the pages is run, and prints what the page shows."""

from __future__ import annotations

import os
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


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `unisono tune` keeps what it finds, for the commands after it."""
    return tmp_path_factory.mktemp("measured") / "figures.json"


def unisono(*words: str, folder: Path, figures: Path) -> None:
    environment = {**os.environ, "UNISONO_MEASURED": str(figures)}
    command = [sys.executable, "-m", "unisono", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_command_lines(command: str, figures: Path, tmp_path: Path) -> None:
    program, *words = shlex.split(command)
    assert program == "unisono"
    if "measured" in words and not figures.exists():  # this test was asked for alone
        unisono("tune", "--seconds", "1", folder=tmp_path, figures=figures)
    unisono(*words, folder=tmp_path, figures=figures)
