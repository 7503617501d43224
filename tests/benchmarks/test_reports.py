"""Where a report is kept: one for each vendor of processors."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import reports

from unisono.base.linux import vendor


def test_a_report_is_named_after_the_vendor(tmp_path: Path) -> None:
    assert reports.report_path(tmp_path / "new" / "{vendor}_torch.md") == tmp_path / "new" / f"{vendor()}_torch.md"
    assert reports.report_path(tmp_path / "new" / "other.md").parent.is_dir()


@pytest.mark.parametrize("record", ["", "1"])
def test_a_report_that_is_kept_is_replaced_only_by_one_that_says_so(
    record: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reports, "RESULTS", tmp_path)
    monkeypatch.setenv("RECORD", record)
    assert reports.report_path(tmp_path / "amd.md") == tmp_path / ("" if record else "own") / "amd.md"
    assert reports.report_path(tmp_path / "other" / "amd.md") == tmp_path / "other" / "amd.md"


def test_git_ignores_reports_that_are_not_kept() -> None:
    root = reports.RESULTS.parents[1]
    assert "/benchmarks/results/own/" in (root / ".gitignore").read_text().splitlines()


def test_the_head_tells_processors_of_one_name_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"vendor_id": "GenuineIntel", "cpu family": "6", "model": "143"}
    monkeypatch.setattr(reports, "cpuinfo", lambda name: told[name])
    assert " (GenuineIntel family 6 model 143), " in reports.describe()["machine"]
