"""The benchmark of a busy machine: its table, its hogs, and a run of one small cell. No test looks at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.busy import STEPS, bench_busy, busy_markdown, hogs
from benchmarks.reports import GLOO, OURS


def children() -> list[str]:
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


def test_hogs_live_as_long_as_their_block() -> None:
    before = children()
    with hogs(2):
        assert len(children()) == len(before) + 2
    assert children() == before


def test_a_table_of_medians_and_one_of_least_times() -> None:
    seconds = {OURS: [3e-6, 1e-6, 2e-6], GLOO: [8e-6, 5e-6, 7e-6]}
    slow = {OURS: [4e-3], GLOO: [1e-3]}
    results = {(8, 0): seconds, (8, 1): seconds, (STEPS[0], 0): slow, (STEPS[0], 1): slow}
    text = "\n".join(busy_markdown({"date": "a day"}, results))
    medians, least = text.split("## Least times")
    for words in ("- date: a day", "0 hogs | 1 hog |", "`all_reduce`, 8 B | 2 / 7 (3.5×)", "4,000 / 1,000 (0.2×)"):
        assert words in medians
    assert "1 / 5 (5.0×)" in least


@pytest.mark.long
def test_a_run(tmp_path: Path) -> None:
    output = tmp_path / "BUSY.md"
    bench_busy(neighbours="1", sizes="64", turns=1, output=output)
    rows = [line.split(" | ")[0] for line in output.read_text().splitlines() if line.startswith("| ")]
    assert rows == 2 * ["| ", "| ---", "| `all_reduce`, 64 B", *(f"| {step}" for step in STEPS)]
