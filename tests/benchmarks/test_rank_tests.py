"""The benchmark of tests on ranks: each way passes with one test. No test looks at a time."""

from __future__ import annotations

import pytest
from benchmarks.rank_tests import WAYS, seconds


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_way(way: str) -> None:
    assert seconds(WAYS[way], 1) > 0
