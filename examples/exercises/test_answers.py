"""Check your answers: `pytest examples/exercises -k ring_all_gather`."""

from __future__ import annotations

import pytest

from . import answers
from .checking import EXERCISES, check, check_here
from .net import Mistake


@pytest.mark.parametrize("name", EXERCISES)
def test_answer(name: str) -> None:
    """On simulated ranks, which say what is wrong."""
    try:
        check(name, getattr(answers, name))
    except Mistake as mistake:
        pytest.fail(str(mistake), pytrace=False)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", EXERCISES)
def test_answer_on_ranks(name: str) -> None:
    """On real ones, with unisono's messages."""
    check_here(name, getattr(answers, name))
