"""`each` tries all values, and says which fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.each import each

pytestmark = pytest.mark.quick

tried: list[tuple[int, int, str]] = []


@each("a, b", [(1, 2), (3, 3), (5, 6), (7, 7)])
@pytest.mark.parametrize("word", ["one", "two"])
def test_fixtures_and_parameters_are_passed_on(tmp_path: Path, a: int, b: int, word: str) -> None:
    assert tmp_path.exists()
    tried.append((a, b, word))


def test_all_values_have_been_tried() -> None:
    assert tried == [(a, b, word) for word in ("one", "two") for a, b in [(1, 2), (3, 3), (5, 6), (7, 7)]]


def test_values_that_fail_are_named() -> None:
    @each("number", [1, 2, 3])
    def odd(number: int) -> None:
        assert number % 2, "it is even"

    with pytest.raises(AssertionError, match=r"^1 of 3 fail:\nnumber=2: it is even") as caught:
        odd()
    assert isinstance(caught.value.__cause__, AssertionError)
