"""The benchmark of a server's steps: its table, and a run of a few steps over two hosts. No test looks at a time."""

from __future__ import annotations

import pytest
from benchmarks.serving import bench_serving


def test_a_short_run_over_two_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    bench_serving(shapes="2x1", neighbours="0", turns=2)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| 2 ranks on 2 hosts | 0 |")]
    assert len(rows) == 1
    assert float(rows[0].split("|")[3].split()[0]) > 0
