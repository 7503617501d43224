"""Every example of the pages, of the README and of the main docstrings is run, and prints what is shown."""

import inspect
import os
import re
import shlex
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

import unisono
from tests.support.markdown import ROOT, Block, blocks, run
from tests.support.programs import run_python
from unisono.schedule import count, lower_bounds
from unisono.schedule.algorithms import CATALOGUE

DOCS = ROOT / "docs"
PAGES = [DOCS / "index.md", DOCS / "start.md", *sorted((DOCS / "guides").glob("*.md"))]
BLOCKS = [block for page in PAGES for block in blocks(page)]
PYTHON = [block for block in BLOCKS if block.language == "python" and "torchft" not in block.text]
COMMANDS = [
    line.removeprefix("$ ")
    for block in BLOCKS
    if block.language == "console" and block.output is None
    for line in block.text.splitlines()
    if line.startswith("$ ")
]
SHOWN = [block for block in BLOCKS if block.language == "console" and block.output is not None]


@pytest.mark.sampled(most=12)
@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python(block: Block, tmp_path: Path) -> None:
    if "_reconfigure(" in block.text and not hasattr(torch.distributed, "_reconfigure"):
        pytest.skip("this torch cannot reconfigure groups")
    printed = run(block, tmp_path)
    if block.output is not None:
        assert printed == block.output


@pytest.mark.parametrize("block", [block for block in PYTHON if block.launcher and "tutorials" in block.page], ids=str)
def test_tutorial_prints_the_same_by_gloo(block: Block, tmp_path: Path) -> None:
    assert run(replace(block, text=block.text.replace('"unisono"', '"gloo"')), tmp_path) == block.output


def test_tutorials_count_right() -> None:
    """The page's table: what the busiest of four ranks sends at least, and an algorithm that sends no more."""
    page = (DOCS / "guides" / "tutorials.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\d.]+) m \| \[(\w+)\]", page, re.MULTILINE)
    assert len(rows) == 6
    for call, least, algorithm in rows:
        counted = count(CATALOGUE[f"{call}.{algorithm}"].schedule(4)).most_sent
        assert float(least) == lower_bounds(call, 4).sent == counted


def test_training_resumes(tmp_path: Path) -> None:
    """Stopped after two epochs and started again, the script ends with the weights of one that goes through."""
    whole = next(block for block in PYTHON if block.page.endswith("train.md"))
    half, ends = replace(whole, text=whole.text.replace("range(start, 4)", "range(start, 2)")), []
    for parts in ((half, whole), (whole,)):
        folder = tmp_path / f"{len(parts)}"
        folder.mkdir()
        assert "".join(run(part, folder) for part in parts) == whole.output
        ends.append(torch.load(folder / "checkpoint.pt")["model"]["module.weight"])
    assert torch.equal(*ends)


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_command_prints_what_is_shown(block: Block) -> None:
    program, *words = shlex.split(block.text.removeprefix("$ "))
    done = run_python("-m", program, *words, env=dict(os.environ, COLUMNS="100", UNISONO_LANES="1"), check=True)

    def plain(text: str) -> list[str]:
        # How long a proof took, and the line of the source, may change.
        return [re.sub(r"in [\d.]+ [nµm]?s|\.py:\d+", "", line).rstrip() for line in text.splitlines() if line.strip()]

    assert plain(block.output or "") == plain(done.stdout)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "yaml"], ids=str)
def test_manifests_are_yaml(block: Block) -> None:
    assert all(part["kind"] for part in yaml.safe_load_all(block.text))


@pytest.mark.long
@pytest.mark.parametrize("line", COMMANDS)
def test_command_lines(line: str, tmp_path: Path) -> None:
    all_words = shlex.split(line)
    settings = dict(word.split("=") for word in takewhile(lambda word: "=" in word, all_words))
    program, *words = all_words[len(settings) :]
    assert program == "unisono"
    done = run_python("-m", "unisono", *words, cwd=tmp_path, env={**os.environ, **settings})
    assert done.returncode == 0, done.stderr


CALLS = [name for name in unisono.__all__ if "    def work" in (getattr(unisono, name).__doc__ or "")]
assert len(CALLS) > 10


@pytest.mark.parametrize("call", CALLS)
def test_example_gives_what_it_says(call: str, worlds: Callable[[int], unisono.World]) -> None:
    example = textwrap.dedent((inspect.getdoc(getattr(unisono, call)) or "").partition("Example::")[2])
    work, _, run = example.strip().rpartition("\n\n")
    expression, _, said = run.partition("  # ")
    names: dict[str, Any] = {"torch": torch, "time": time, "unisono": unisono}
    exec(work, names)  # noqa: S102  a docstring of ours
    run_there = SimpleNamespace(run=lambda function, ranks: worlds(ranks).run(function))
    assert repr(eval(expression, {"work": names["work"], "unisono": run_there})) == said  # noqa: S307


PROGRAMS = [block for block in blocks(ROOT / "README.md") if block.language == "python"]


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_programs_of_the_readme(block: Block, tmp_path: Path) -> None:
    printed, shown = run(block, tmp_path), re.findall(r"^print\(.*\)  # (.*)$", block.text, re.MULTILINE)
    assert bool(printed) == bool(shown)
    assert not printed.replace("".join(shown), "").strip()  # ranks may mix their lines
