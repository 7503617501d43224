"""The console of the commands: how wide it is where there is no terminal."""

from __future__ import annotations

import pytest

from unisono.tools.cli.explain import reason
from unisono.tools.cli.shared.printing import console


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("133", 133), ("", 80), ("wide", 80)])
def test_columns_are_honoured_without_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert console().width == width


def test_a_bound_counts_in_the_units_that_the_user_chose() -> None:
    assert "2 × 3 × 250 MB = 1.5 GB, or 6/4" in reason("all_reduce", 4, 10**9, like="1GB")
    assert "2 × 3 × 238 MiB = 1.4 GiB, or 6/4" in reason("all_reduce", 4, 10**9)
