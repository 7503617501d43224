"""Tables and charts of the pages are those of the runs that they name; links and named files are there."""

import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks import figures
from benchmarks.runs import RESULTS, ROOT, read

import unisono
from unisono.calls.ops import check_op_dtype, premul_sum, resolve

PAGES = figures.pages()


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_generated(page: Path) -> None:
    """`python -m benchmarks.figures` writes them."""
    assert figures.filled(page.read_text()) == page.read_text()


def test_charts_are_generated() -> None:
    drawn = {path.stem: path.read_text() for path in figures.CHARTS.glob("*.svg")}
    charts = figures.charts()
    assert sorted(drawn) == sorted(name for name, _, _ in charts)
    for name, titles, _ in charts:
        assert all(title in drawn[name] for title in titles)


def test_every_run_is_on_a_page() -> None:
    blocks = [what[1] for page in PAGES for what in figures.BLOCK.findall(page.read_text())]
    assert {name for what in blocks for name in figures.names_of(what)} == {run.stem for run in RESULTS.glob("*.json")}


def takes(call: str, op: str, dtype: str) -> bool:
    """Does this call of ours take this dtype with this op, as the code says?"""
    if not op:
        return True  # it only moves
    if op == "avg" and call in ("scan", "exscan"):
        return False
    made: dict[str, Any] = {"custom": unisono.make_op(lambda x, y: x + y + 1), "premul_sum": premul_sum(0.5)}
    try:
        check_op_dtype(made.get(op) or resolve(op), dtype)
    except unisono.DTypeError:
        return False
    return True


def test_page_of_calls_says_what_the_code_says() -> None:
    table = read("calls").table("unisono")
    said = {
        (call, op, dtype): outcome
        for calls, ops, *outcomes in table.rows
        for dtypes, outcome in zip(table.headings[2:], outcomes, strict=True)
        for call in str(calls).split(", ")
        for op in str(ops).split(", ")
        for dtype in dtypes.split(", ")
    }
    assert len(said) > 1000
    assert said == {cell: "right" if takes(*cell) else "raises" for cell in said}


PATTERNS = "*.md", "docs/*.md", "docs/guides/*.md", ".github/**/*.md"
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)|^\[[^\]\n]+\]: ([^\s#]+)", re.MULTILINE)
REPOSITORY = re.compile(r"https://(?:raw\.githubusercontent|github)\.com/unisono/unisono(?:/(?:blob|tree))?/main/(.*)")
SITE = re.compile(r"https://unisono\.readthedocs\.io/en/latest/(?!reference/)(.+?)(?:\.html)?$")


def test_links_lead_to_files() -> None:
    pages = [page for pattern in PATTERNS for page in ROOT.glob(pattern)]
    assert len(pages) > 20
    for page in pages:
        for link in map("".join, LINK.findall(CODE.sub("", page.read_text()))):
            if ours := REPOSITORY.match(link):
                assert (ROOT / ours[1]).exists(), f"{page}: {link}"
            elif ours := SITE.match(link):
                assert (ROOT / "docs" / f"{ours[1]}.md").exists(), f"{page}: {link}"
            elif not re.match(r"https://|mailto:|http://localhost", link):
                assert page != ROOT / "README.md", f"{link}: a package index shows the README alone"
                assert (page.parent / link).exists(), f"{page}: {link}"


def test_named_functions_are_in_their_files() -> None:
    """In ARCHITECTURE: `calls/dispatch/drive.py` `drive`."""
    named = re.findall(r"`([\w/]+\.py)` `(\w+)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 10
    for path, name in named:
        code = (ROOT / "src" / "unisono" / path).read_text()
        assert re.search(rf"^\s*(def|class) {name}\b", code, re.MULTILINE), f"{path}: {name}"
