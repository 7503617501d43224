"""The benchmark of late ranks: one small turn."""

from __future__ import annotations

import typer
from benchmarks.late import bench_late
from typer.testing import CliRunner


def test_a_run() -> None:
    app = typer.Typer()
    app.command()(bench_late)
    options = ["--ranks", "2", "--sizes", "8", "--late-ms", "0,2", "--turns", "2", "--wait-s", "0.05"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    rows = [line.split(" | ") for line in result.output.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == [
        "| all_reduce, all out after", "| ---", "| 2 ranks, 8 B, 0 ns late", "| 2 ranks, 8 B, 2 ms late",
        "| processor time of a rank that waits", "| ---", "| 2 ranks, 50 ms",
    ]  # fmt: skip
    assert all(len(row) == 4 for row in rows)
