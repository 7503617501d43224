"""Where a report is kept: one for each vendor of processors."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import machine

from unisono.base.cpu import vendor


def test_a_report_is_named_after_the_vendor() -> None:
    assert machine.vendor_path(Path("results/{vendor}_torch.md")) == Path(f"results/{vendor()}_torch.md")
    assert machine.vendor_path(Path("other.md")) == Path("other.md")


def test_the_head_tells_processors_of_one_name_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"vendor_id": "GenuineIntel", "cpu family": "6", "model": "143"}
    monkeypatch.setattr(machine, "cpuinfo", lambda name: told[name])
    assert " (GenuineIntel family 6 model 143), " in machine.describe()["machine"]
