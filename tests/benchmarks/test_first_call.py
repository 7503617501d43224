"""The benchmark of a first call: its table, and a run of one turn. No test looks at a time."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.first_call import FIRST, OTHER, ROWS, bench_first_call, first_call_markdown
from benchmarks.reports import GLOO, OURS


def test_each_part_has_its_row_and_all_of_them_a_sum() -> None:
    turns = [{"imports": 3.0, "meeting": 1.5, "wall": 20.0}, {"imports": 5.0, "meeting": 1.5, "wall": 30.0}]
    lines = first_call_markdown({"machine": "x"}, {GLOO: [{"torch's store": 2.0, "wall": 4.0}], OURS: turns})
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
    assert rows["imports"] == "| imports |  | 4.0 (3.0) |"
    assert rows["torch's store"] == "| torch's store | 2.0 (2.0) |  |"
    assert rows["all"] == "| all | 2.0 (2.0) | 5.5 (4.5) |"
    assert rows["wall"] == "| wall | 4.0 (4.0) | 25.0 (20.0) |"


def test_a_run(tmp_path: Path) -> None:
    output = tmp_path / "FIRST.md"
    bench_first_call(turns=1, first=0, beside=sys.executable, output=output)
    lines = [line for line in output.read_text().splitlines() if line.startswith("| ")]
    assert lines[0] == f"|  | {GLOO} | {OTHER} | {OURS} |"
    cells = {name: row for name, *row in (line.strip("| ").split(" | ") for line in lines[2:])}
    assert {*cells} == {*ROWS, "all", "wall"}
    assert all(len(cells[part]) == 3 for part in ("all", "wall"))
    assert FIRST not in output.read_text()
