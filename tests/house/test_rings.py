"""Rings of tests: what a sample has, and that a test that passes only in its second run is told and counted."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import MOST_RERUNS, sample

ROOT = Path(__file__).parents[2]

FLAKY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_flaky(number):
    seen = Path(__file__).with_name(str(number))
    if not seen.exists():
        seen.touch()
        raise AssertionError("the first time")
"""


@pytest.mark.parametrize("axes", [(6, 11), (5, 4, 2), (7,), (2, 2, 2, 2)])
def test_a_sample_has_each_value_and_is_the_same_for_one_seed(axes: tuple[int, ...]) -> None:
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


@pytest.mark.parametrize(("count", "parallel"), [(MOST_RERUNS, ()), (MOST_RERUNS + 1, ("--numprocesses", "2"))])
def test_a_run_in_which_many_tests_pass_only_when_run_again_fails(
    count: int, parallel: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "test_flaky.py").write_text(FLAKY.format(count=count))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = quick\n long\n sampled\n")
    options = "-p", "tests.conftest", "--rootdir", str(tmp_path), "--reruns", "1", *parallel
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NIGHTLY": "1"},  # so that it starts no warm process
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert f"{count} tests were run again" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("AssertionError: the first time") >= count
    assert done.returncode == (count > MOST_RERUNS), done.stdout
