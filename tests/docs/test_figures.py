"""The tables and charts of the README and the docs are those of the runs that they name."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import figures
from benchmarks.runs import RESULTS, ROOT, read

import unisono
from tests.support.record import record
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


def test_commands_of_runs_exist() -> None:
    """Each kept run can be made again."""
    for name in (path.stem for path in RESULTS.glob("*.json") if path.stem != "support"):
        python, _, module = read(name).command.split()[:3]
        path = ROOT.joinpath(*module.split("."))
        assert python == "python"
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


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


def test_misspelt_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no row has call=al_reduce; choose from .*all_reduce"):
        figures.filled("<!-- figures: amd_collectives call=al_reduce -->\n<!-- end -->")


def test_run_that_is_missing_is_said() -> None:
    assert "not been measured" in figures.filled("<!-- figures: {vendor}_nothing -->\n<!-- end -->")


def test_stale_runs_name_their_code() -> None:
    said = figures.stale(-1)
    assert len(said) == len([*RESULTS.glob("*.json")]) - 1  # the record of tested versions is no run
    assert all("commits to src" in line for line in said)
    assert {line.partition(":")[0] for line in figures.stale(0)} <= {line.partition(":")[0] for line in said}


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
