"""The benchmark of a first call: its table, and a run of one turn. No test looks at a time."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks.first_call import FIRST, OTHER, ROWS, bench_first_call, first_call_markdown
from benchmarks.reports import GLOO, OURS

from tests.support.namespaces import why_no_namespaces


def test_each_part_has_its_row_and_all_of_them_a_sum() -> None:
    turns = [{"imports": 3.0, "meeting": 1.5, "wall": 20.0}, {"imports": 5.0, "meeting": 1.5, "wall": 30.0}]
    gloo = {"torch's store": 2.0, "wall": 4.0}
    over = {GLOO: [gloo], OURS: [{"meeting": 2.5, "the sentinel itself": 7.0, "wall": 9.0}]}
    lines = first_call_markdown({"machine": "x"}, {GLOO: [gloo], OURS: turns}, {"1+1": over})
    cut = lines.index("### 1+1")
    assert [line for line in lines[cut:] if line.startswith(("| all", "| the sentinel"))] == [
        "| all | 2.0 (2.0) | 2.5 (2.5) |",
        "| the sentinel itself |  | 7.0 (7.0) |",
    ]
    lines = lines[:cut]
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
    assert rows["imports"] == "| imports |  | 4.0 (3.0) |"
    assert rows["torch's store"] == "| torch's store | 2.0 (2.0) |  |"
    assert rows["all"] == "| all | 2.0 (2.0) | 5.5 (4.5) |"
    assert rows["wall"] == "| wall | 4.0 (4.0) | 25.0 (20.0) |"


def test_a_run(tmp_path: Path) -> None:
    output = tmp_path / "FIRST.md"
    bench_first_call(turns=1, first=0, beside=sys.executable, hosts="1+1", output=output)
    text, _, over_hosts = output.read_text().partition("## Over hosts")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert lines[0] == f"|  | {GLOO} | {OTHER} | {OURS} |"
    cells = {name: row for name, *row in (line.strip("| ").split(" | ") for line in lines[2:])}
    assert (
        {"imports", "torch's store", "meeting", "memory", "plan", "all", "wall"} <= {*cells} <= {*ROWS, "all", "wall"}
    )
    assert all(len(cells[part]) == 3 for part in ("all", "wall"))
    assert FIRST not in text
    if not why_no_namespaces():
        assert re.search(r"\n\| the sentinel itself \|  \| [1-9].* \| [1-9]", over_hosts)
        assert re.search(r"\n\| sentinel, carrier \|  \| ", over_hosts)
