"""The benchmarks of busy machines, late ranks and a server's steps: a small run of each. No test looks at a time."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from benchmarks.busy import LATE_S, STEPS, calls, hogs, late, serving, until_all_are_out


def test_hogs_live_as_long_as_their_block() -> None:
    before = len(psutil.Process().children())
    with hogs(2):
        assert len(psutil.Process().children()) == before + 2
    assert len(psutil.Process().children()) == before


def test_a_turn_lasts_from_the_last_call_until_the_last_rank_is_out() -> None:
    ranks = [{"a": [(1.0, 5.0), (2.0, 3.0)]}, {"a": [(4.0, 4.5), (1.0, 7.0)]}]
    assert until_all_are_out(ranks) == {"a": [1.0, 5.0]}


@pytest.mark.long
def test_a_run_of_each(tmp_path: Path) -> None:
    output = tmp_path / "REPORT.md"

    def rows() -> list[str]:
        return [line.split(" | ")[0] for line in output.read_text().splitlines() if line.startswith("| ")][2:]

    calls(neighbours="1", sizes="64", turns=1, output=output)
    assert rows()[:3] == ["| `all_reduce`, 64 B", *(f"| {step}" for step in STEPS)]
    late(ranks="3", sizes="8", neighbours="1", turns=3, output=output)
    assert sum(row.startswith("| 3 ranks, 8 B, ") for row in rows()) == 3 * len(LATE_S)
    serving(shapes="2x1", neighbours="0", turns=2, output=output)
    assert rows() == ["| 2 ranks on 2 hosts"]
