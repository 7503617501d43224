"""The benchmark of ranks that are late: what it makes of the times of ranks, and a run of one small cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.late import LATE_S, bench_late, until_all_are_out


def test_a_turn_lasts_from_the_last_call_until_the_last_rank_is_out() -> None:
    ranks = [{"a": [(1.0, 5.0), (2.0, 3.0)]}, {"a": [(4.0, 4.5), (1.0, 7.0)]}]
    assert until_all_are_out(ranks) == {"a": [1.0, 5.0]}


@pytest.mark.long
def test_a_run(tmp_path: Path) -> None:
    output = tmp_path / "LATE.md"
    bench_late(ranks="3", sizes="8", neighbours="1", turns=3, output=output)
    rows = [line for line in output.read_text().splitlines() if line.startswith("| 3 ranks")]
    assert len(rows) == 3 * len(LATE_S)
