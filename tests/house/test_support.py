"""What other tests stand on: `each`, `frames`, processes that end as those of Python do, and rings of tests.

Of rings: what a sample has, and that a test that passes only in its second run is told and counted.
"""

import gc
import os
import signal
import sys
import threading
from itertools import product
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from tests.conftest import MOST_RERUNS, sample
from tests.support.each import each
from tests.support.programs import run_python
from tests.support.waiting import frames

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


@pytest.mark.quick
def test_no_garbage_is_collected_while_frames_are_listed() -> None:
    seen: list[CodeType] = []
    before = gc.get_threshold()
    gc.collect()
    new = [{1}, {2}, {3}]
    gc.callbacks.append(lambda *_: seen.append(sys._getframe(1).f_code))
    try:
        gc.set_threshold(1)  # the next new object, such as a frame, begins a collection
        code = frames()[threading.get_ident()].f_code
    finally:
        gc.set_threshold(*before)
        del gc.callbacks[-1], new
    assert frames.__code__ not in seen
    assert code is frames.__code__


ENDS = """
import atexit, threading, time
atexit.register(print, "bye")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
"""


@pytest.mark.parametrize(
    ("last", "code", "error"),
    [
        ("", 0, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit(-1)", 255, ""),
        ("raise SystemExit('why')", 1, "why"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_a_process_ends_as_python_ends(last: str, code: int, error: str) -> None:
    """Threads first, then what was registered; what was printed is not lost."""
    done = run_python("-c", ENDS + last)
    assert (done.returncode, done.stdout) == (code, "thread\nbye\n"), done.stderr
    # triton, which CUDA builds of torch load, lists what has leaked behind an error
    assert error in done.stderr.splitlines() if error else not done.stderr


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
    done = run_python("-m", "pytest", *options, tmp_path, cwd=ROOT, env={**os.environ, "NIGHTLY": "1"})
    assert f"{count} tests were run again" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("AssertionError: the first time") >= count
    assert done.returncode == (count > MOST_RERUNS), done.stdout
