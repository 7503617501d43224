"""The benchmark of calls that are watched: a short run."""

from __future__ import annotations

import subprocess
import sys


def test_a_short_run() -> None:
    command = [sys.executable, "-m", "benchmarks.watched_calls", "--blocks", "1"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    rows = [line.split("|") for line in text.splitlines() if line.startswith(("| in step", "| alone"))]
    assert [float(watched) > 0 for _, _, _, watched, *_ in rows] == [True, True]
    assert float(rows[1][4]) > 0  # with a stand-in, logging costs more than nothing
