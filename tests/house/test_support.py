"""What other tests stand on: `each` tries all values, and a sample of cases has each value."""

from inspect import signature
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import sample
from tests.support.each import each


@pytest.mark.quick
def test_each_tries_all_and_names_failures() -> None:
    tried, values = list[tuple[int, int, str]](), [(1, 2), (3, 3), (5, 6), (7, 7)]

    @each("a, b", values)
    def record(word: str, a: int, b: int) -> None:
        tried.append((a, b, word))
        assert a != b, "equal"

    assert [*signature(record).parameters] == ["word"], "what pytest asks which fixtures it wants"
    with pytest.raises(AssertionError, match=r"(?s)2 of 4 fail:\na=3, b=3: equal.*\na=7, b=7: equal"):
        record(word="one")
    assert tried == [(a, b, "one") for a, b in values]


@pytest.mark.parametrize("axes", [(6, 11), (5, 4, 2), (7,), (2, 2, 2, 2)])
def test_sample_has_each_value_and_keeps_its_seed(axes: tuple[int, ...]) -> None:
    class Case:
        def __init__(self, values: tuple[int, ...]) -> None:
            self.callspec = SimpleNamespace(params=dict(zip(names, values, strict=True)))

    names = "abcd"[: len(axes)]
    cases: list[Any] = [*map(Case, product(*map(range, axes)))]
    drawn = sample(cases, "some")
    for name, length in zip(names, axes, strict=True):
        assert {case.callspec.params[name] for case in drawn} == set(range(length))
    assert len(drawn) <= sum(axes)
    assert sample(cases, "some") == drawn
    assert any(sample(cases, str(seed)) != drawn for seed in range(20))
