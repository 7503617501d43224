"""Fixtures that tests share, such as the worlds of a session. Samples of cases, and reruns."""

import gc
import os
import random
import signal
import subprocess
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import unisono.errors  # noqa: F401  the errors of a test's file go to ranks by this name, if it is there
from tests.support import warm_python
from tests.support.on_ranks import Worlds
from tests.support.programs import Python, processes
from tests.support.torch_ranks import TorchRanks
from unisono.base.python import no_collections
from unisono.tools.pytest_plugin.warm_worlds import world_of

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without a terminal starts what it puts in the background like this; tests of Ctrl-C need the usual way.
    signal.signal(signal.SIGINT, signal.default_int_handler)

NIGHTLY = bool(os.environ.get("NIGHTLY"))  # is this `make nightly`? Tests that draw their cases draw more of them then


def examples(most: int) -> int:
    """How many examples hypothesis draws of a property: a quarter by day, the same each time; others by night."""
    return most if NIGHTLY else most // 4


MOST_RERUNS = 3  # tests that may pass only when they are run again: with more of them a run fails
first_failures: dict[str, str] = {}


def pytest_configure() -> None:
    """Let hypothesis draw the same each day, and start the warm process. Workers of xdist have one of their own."""
    from hypothesis import settings

    settings.register_profile("tests", deadline=None, derandomize=not NIGHTLY)
    settings.load_profile("tests")
    if not NIGHTLY and subprocess.Popen is not warm_python.Popen:
        warm_python.install()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files without quick tests where only these run: to import all files takes ten seconds."""
    if not config.option.markexpr.startswith("quick") or not collection_path.name.startswith("test_"):
        return None
    return None if "mark.quick" in collection_path.read_text() else True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let no collection of garbage look at what pytest collects: each that a test asks for would take a second."""
    with no_collections():
        collected = yield
    gc.freeze()
    return collected


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as long what is not drawn of tests that are marked as sampled, and run the quick tests first."""
    tests: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in tests.items():
        drawn = sample(cases, name, **cases[0].get_closest_marker("sampled").kwargs)
        for case in cases:
            if case not in drawn:
                case.add_marker(pytest.mark.long)
    items.sort(key=lambda item: item.get_closest_marker("quick") is None)


def sample(cases: Sequence[pytest.Function], seed: str, most: int | None = None) -> list[pytest.Function]:
    """Draw cases of a test, so that each value of each parameter is in one of them, or `most` of these."""
    values = {case: {(name, id(value)) for name, value in case.callspec.params.items()} for case in cases}
    missing = set[tuple[str, int]]().union(*values.values())
    left, drawn = [*cases], list[pytest.Function]()
    random.Random(seed).shuffle(left)
    while missing:
        best = max(left, key=lambda case: len(values[case] & missing))
        left.remove(best)
        drawn.append(best)
        missing -= values[best]
    return drawn[:most]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the processes of a test anew that is about how processes start."""
    warm_python.cold = item.get_closest_marker("cold") is not None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if str(report.outcome) == "rerun":
        first_failures[report.nodeid] = report.longreprtext


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which too many tests have passed only when they were run again."""
    if len(first_failures) > MOST_RERUNS and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the first failure of each test that was run again, and count these tests."""
    for test, failure in first_failures.items():
        terminalreporter.section(f"{test} was run again because of this")
        terminalreporter.write_line(failure)
    if first_failures:
        few = len(first_failures) <= MOST_RERUNS
        terminalreporter.section(f"{len(first_failures)} tests were run again", red=not few, yellow=few)


@pytest.fixture(scope="session")
def worlds(pytestconfig: pytest.Config) -> Worlds:
    """worlds(p): the world of p ranks that runs the tests on ranks, too. A run that fails takes its ranks with it."""
    return partial(world_of, pytestconfig, timeout_s=60)


@pytest.fixture
def python() -> Iterator[Python]:
    """python("-c", text, RANK=0): a process of its own, which is killed in the end."""
    with processes() as start:
        yield start


@pytest.fixture
def ranks(worlds: Worlds, tmp_path: Path) -> TorchRanks:
    """ranks(p)(function): the function on p ranks of a process group of torch.distributed."""
    return TorchRanks(worlds, tmp_path)
