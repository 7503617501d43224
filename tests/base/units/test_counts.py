"""Counts and ranks as text."""

from __future__ import annotations

import pytest

from unisono.base.units import plural, ranks_text

pytestmark = pytest.mark.quick


def test_plural() -> None:
    assert [plural(count, "round") for count in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]


def test_ranks() -> None:
    assert ranks_text([1]) == "rank 1"
    assert ranks_text(range(1, 3)) == "ranks 1, 2"
    assert ranks_text(range(9), 2) == "ranks 0, 1 and 7 more"
    assert ranks_text([4], 2) == "rank 4"
