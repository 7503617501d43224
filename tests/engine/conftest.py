"""A processor that keeps no order, for the tests of what it may show."""

from __future__ import annotations

import pytest

from tests.support.weak_memory import Weak
from unisono.engine import memory_order
from unisono.engine.memory import board


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> Weak:
    """Code that runs on a processor that keeps no order. Sets of ranks are short: fewer words, fewer choices."""
    made = Weak()
    monkeypatch.setattr(memory_order, "KEEPS_ORDER", False)
    monkeypatch.setattr(memory_order, "fence", made.order)
    monkeypatch.setattr(board, "fence", made.fence)
    monkeypatch.setattr(board, "_SET_WORDS", 1)
    monkeypatch.setattr(board, "_PLACE_WORDS", 5)
    return made
