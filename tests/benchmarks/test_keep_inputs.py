"""The benchmark of keep_inputs: one small turn."""

from __future__ import annotations

import typer
from benchmarks.keep_inputs import bench_keep_inputs
from typer.testing import CliRunner


def test_a_run() -> None:
    app = typer.Typer()
    app.command()(bench_keep_inputs)
    result = CliRunner().invoke(app, ["--sizes", "64,1KiB", "--turns", "1"])
    assert result.exit_code == 0, result.output
    rows = [line.split(" | ") for line in result.output.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2:]] == ["| 64 B", "| 1 KiB"]
    assert all(len(row) == 7 for row in rows)
