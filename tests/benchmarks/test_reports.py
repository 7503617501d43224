"""Where a report is kept: one for each vendor of processors."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import reports


@pytest.mark.parametrize("record", ["", "1"])
def test_a_report_that_is_kept_is_replaced_only_by_one_that_says_so(
    record: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reports, "RESULTS", tmp_path)
    monkeypatch.setenv("RECORD", record)
    assert reports.report_path(tmp_path / "amd.md") == tmp_path / ("" if record else "own") / "amd.md"
    assert reports.report_path(tmp_path / "other" / "amd.md") == tmp_path / "other" / "amd.md"
