"""What the README shows is run: its Python, its command lines, its picture, its figures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.markdown import ROOT, Block, blocks, run
from tests.support.scripts import Scripts

README = (ROOT / "README.md").read_text()
PROGRAMS = [block for block in blocks(ROOT / "README.md") if block.language == "python"]


def program(words: str) -> Block:
    """The one that has these words."""
    (found,) = (block for block in PROGRAMS if words in block.text)
    return found


def part(name: str) -> str:
    """The text between two marks."""
    return README.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0].strip()


def test_links_and_images_work_on_a_package_index() -> None:
    """They are absolute, and those into the repository name a file that is there: images raw, the others as a page."""
    links = re.findall(r"(!?)\[[^\]]*\]\((\S+?)\)", README) + re.findall(r"^()\[.+\]: (\S+)$", README, re.MULTILINE)
    assert {image for image, _ in links} == {"", "!"}
    for image, target in links:
        assert target.startswith("https://"), target
        host = (
            "https://raw.githubusercontent.com/unisono/unisono/main/"
            if image
            else "https://github.com/unisono/unisono/"
        )
        if image or target.startswith(host):
            path = ROOT / re.sub("^(blob|tree)/main/", "", target.removeprefix(host))
            assert path.exists(), target
            assert image or f"/{'tree' if path.is_dir() else 'blob'}/main/" in target


def test_every_file_that_the_doors_name_is_a_link() -> None:
    doors = README.split("## Doors\n")[1].split("\n[`")[0]
    named = re.findall(r"\[?`[\w./]+`\]?", doors)
    assert len(named) >= 5
    assert all(f"\n{name}: https://" in README for name in named)


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 3


@pytest.mark.parametrize("block", [block for block in PROGRAMS if 'op="max"' not in block.text], ids=str)
def test_programs_run(block: Block, tmp_path: Path, scripts: Scripts) -> None:
    run(block, tmp_path, scripts)


def test_the_average_is_right(tmp_path: Path, scripts: Scripts) -> None:
    assert run(program('op="avg"'), tmp_path, scripts).strip() == str([[15.0] * 4] * 4)


def test_what_a_call_takes_is_right(tmp_path: Path, scripts: Scripts) -> None:
    printed = run(program("all_gather_object"), tmp_path, scripts)
    assert printed.strip() == str(([1, 2, 2, 3, 3, 3], -7, 1, [5, 1, 1, 5]))


def test_the_own_algorithm_is_right(tmp_path: Path, scripts: Scripts) -> None:
    assert run(program("doubling"), tmp_path, scripts).strip() == str([6.0, 10.0, 14.0])


def test_explain_prints_what_is_shown() -> None:
    command = re.search(r"\$ (unisono explain .*)", README)
    assert command
    done = subprocess.run(
        [sys.executable, "-m", *command[1].split()],
        env=dict(os.environ, COLUMNS="100"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    shown = part("explain").strip("`\n").splitlines()
    actual = done.stdout.splitlines()

    def plain(lines: list[str]) -> list[str]:
        # How long the proof took, and the line of the source, may change.
        return [re.sub(r"in [\d.]+ [nµm]?s|\.py:\d+", "", line).rstrip() for line in lines if line.strip()]

    assert plain(shown) == plain(actual)


def test_the_picture_is_drawn_from_the_table_that_runs() -> None:
    from unisono.schedule.algorithms import CATALOGUE
    from unisono.schedule.draw import svg

    assert (ROOT / "docs" / "ring.svg").read_text().strip() == svg(CATALOGUE["all_reduce.ring"].schedule(4)).strip()


def test_the_disagreement_shown_is_what_ranks_raise(tmp_path: Path) -> None:
    message = re.search(r"```\n(call #.*?)```", part("mismatch"), re.DOTALL)
    assert message
    script = tmp_path / "train.py"
    script.write_text(program('op="max"').text)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode
    said = done.stderr.replace(f"{tmp_path}/", "").splitlines()
    assert all(line in said for line in message[1].splitlines()[1:]), done.stderr


@pytest.mark.parametrize("vendor", ["AMD", "Intel"])
def test_the_figures_are_those_of_the_report(vendor: str) -> None:
    report = (ROOT / "benchmarks" / "results" / f"{vendor.lower()}.md").read_text()
    speed = part("speed")
    date = re.search(r"- date: (.*)", report)
    assert date
    assert date[1] in speed
    medians = report.split("### all_reduce, float32, 2 ranks")[1].split("\n### ")[0]
    table = speed.split(f"| {vendor}, µs |")[1].split("\n\n")[0]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in f"| µs |{table}".splitlines() if line[1] == " "
    ]
    assert len(rows) == 7
    for size, *values in rows[1:]:
        for contender, value in zip(rows[0][1:-1], values[:-1], strict=True):
            line = next(x for x in medians.splitlines() if f"({size}) |" in x and f"| {contender} |" in x)
            reported = float(line.split("|")[4])
            assert float(value.replace(",", "")) == pytest.approx(reported, rel=0.01)
