"""The benchmark of a first call: its table, and a run of one turn. No test looks at a time."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks.first_call import FIRST, OTHER, ROWS, bench_first_call
from benchmarks.reports import GLOO, OURS

from tests.support.namespaces import why_no_namespaces


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
