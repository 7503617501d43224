"""The tables and the chart of the README and the docs are those of the runs that they name."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import figures
from benchmarks.runs import RESULTS, ROOT

from tests.support.record import record

PAGES = figures.pages()


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_generated(page: Path) -> None:
    """`python -m benchmarks.figures` writes them."""
    assert figures.filled(page.read_text()) == page.read_text()


def test_chart_is_generated() -> None:
    chart = figures.CHART.read_text()
    assert all(title in chart for title in figures.chart_titles())


def test_every_run_is_on_a_page() -> None:
    named = {
        name
        for page in PAGES
        for what in figures.BLOCK.findall(page.read_text())
        for name in what[1].split()[0].split(",")
    }
    assert named == {run.stem for run in RESULTS.glob("*.json")}


@pytest.mark.parametrize("page", ["README.md", "docs/speed.md", "docs/choose.md"])
def test_no_typed_figures_of_speed(page: str) -> None:
    text = figures.BLOCK.sub("", (ROOT / page).read_text())
    assert not re.findall(r"\d ?(?:µs|ms|×|times as)", text)


def test_misspelt_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no row has call=al_reduce; choose from .*all_reduce"):
        figures.filled("<!-- figures: amd_collectives call=al_reduce -->\n<!-- end -->")


def test_a_block_selects_rows_and_columns() -> None:
    block = '<!-- figures: amd_serving "ranks=2 on one host" "contender=Gloo|unisono" show=median,p99 -->\n<!-- end -->'
    lines = figures.filled(block).splitlines()
    table = figures.read("amd_serving").table()
    gloo = next(row for row in table.rows if row[:3] == ["2 on one host", 0, "Gloo"])
    assert lines[2] == "| background processes | Gloo | unisono |"
    assert lines[4].startswith(f"| 0 | {gloo[3] / 1e3:.3g} ms ({gloo[4] / 1e3:.3g} ms) | ")
    assert len(lines) == 10


def test_stale_runs_name_their_code() -> None:
    said = figures.stale(0)
    assert len(said) <= len([*RESULTS.glob("*.json")]) - 1
    assert all("commits to src" in line for line in said)
    assert not figures.stale(10**6) or "an unknown number" in said[0]


def test_support_shows_latest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "support.json"

    def run(commit: str, *args: str, **stats: list[int]) -> None:
        option = SimpleNamespace(keyword="", collectonly=False, markexpr="not long")
        config = SimpleNamespace(option=option, args=args)
        record(SimpleNamespace(config=config, stats=stats), commit, file)  # type: ignore[arg-type]

    run("0123456789", str(ROOT / "tests"), passed=[1, 2], failed=[3])
    run("abcdefabcd", str(ROOT / "tests"), passed=[1, 2, 3], skipped=[4], error=[5])
    run("a part of it", str(ROOT / "tests" / "docs"), passed=[1])
    first, _ = json.loads(file.read_text())
    assert (first["passed"], first["skipped"], first["failed"], first["commit"]) == (2, 0, 1, "01234567")
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    table = figures.filled("<!-- figures: support -->\n<!-- end -->")
    assert "| 3 | 1 | 1 | abcdefab |" in table
    assert "01234567" not in table
