"""What the README shows is run; where its links lead is there. `tests/docs/test_speed.py` holds its figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.markdown import ROOT, Block, blocks, run

README = (ROOT / "README.md").read_text()
PROGRAMS = [block for block in blocks(ROOT / "README.md") if block.language == "python"]


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


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_programs_run(block: Block, tmp_path: Path) -> None:
    printed = run(block, tmp_path)
    assert 'op="avg"' not in block.text or printed.strip() == str([[15.0] * 4] * 4)
