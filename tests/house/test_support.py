"""What other tests stand on: `each`, `frames`, and processes that end as those of Python do."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import CodeType

import pytest

from tests.support.each import each
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
    command = [sys.executable, "-c", ENDS + last]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "thread\nbye\n"), done.stderr
    assert done.stderr.strip().endswith(error) if error else not done.stderr
