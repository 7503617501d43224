"""The benchmark of a busy machine: its table, its hogs, and a run of one small cell. No test looks at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.busy import STEPS, bench_busy, hogs


def children() -> list[str]:
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


def test_hogs_live_as_long_as_their_block() -> None:
    before = children()
    with hogs(2):
        assert len(children()) == len(before) + 2
    assert children() == before


@pytest.mark.long
def test_a_run(tmp_path: Path) -> None:
    output = tmp_path / "BUSY.md"
    bench_busy(neighbours="1", sizes="64", turns=1, output=output)
    rows = [line.split(" | ")[0] for line in output.read_text().splitlines() if line.startswith("| ")]
    assert rows == 2 * ["| ", "| ---", "| `all_reduce`, 64 B", *(f"| {step}" for step in STEPS)]
