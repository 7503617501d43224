"""The benchmark of a server's steps: its table, and a run of a few steps over two hosts. No test looks at a time."""

from __future__ import annotations

import pytest
from benchmarks.reports import GLOO, OURS
from benchmarks.serving import NO_CALL, bench_serving, serving_markdown


def test_the_table_has_medians_and_the_slow_ones() -> None:
    def steps(usual: float, slow: float) -> list[float]:
        return [usual] * 190 + [slow] * 10

    times = {OURS: steps(0.002, 0.004), GLOO: steps(0.003, 0.012), NO_CALL: steps(0.0015, 0.0015)}
    text = serving_markdown({"command": "python"}, {("2 ranks on one host", 2): times})
    row = "| 2 ranks on one host | 2 | 2.00 (4.00) | 3.00 (12.00) | 1.50 (1.50) | 1.50 (3.00) |"
    assert row in text
    assert "- command: `python`" in text


def test_a_short_run_over_two_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    bench_serving(shapes="2x1", neighbours="0", turns=2)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| 2 ranks on 2 hosts | 0 |")]
    assert len(rows) == 1
    assert float(rows[0].split("|")[3].split()[0]) > 0
