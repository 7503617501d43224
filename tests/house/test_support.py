"""What other tests stand on: `each` tries all values, and a sample of cases has each value."""

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import sample
from tests.support.each import each

tried: list[tuple[int, int, str]] = []


@each("a, b", [(1, 2), (3, 3), (5, 6), (7, 7)])
@pytest.mark.parametrize("word", ["one", "two"])
@pytest.mark.quick
def test_fixtures_and_parameters_are_passed_on(tmp_path: Path, a: int, b: int, word: str) -> None:
    assert tmp_path.exists()
    tried.append((a, b, word))


@pytest.mark.quick
def test_all_values_have_been_tried() -> None:
    assert tried == [(a, b, word) for word in ("one", "two") for a, b in [(1, 2), (3, 3), (5, 6), (7, 7)]]


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
