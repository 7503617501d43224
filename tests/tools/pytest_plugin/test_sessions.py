"""Sessions of pytest with tests on ranks: some end early, share their work, have no such tests, or are on the pages."""

import re
import shutil
from pathlib import Path

import pytest

from tests.support.markdown import ROOT, blocks
from tests.support.programs import run_python
from tests.tools.pytest_plugin.conftest import RanksSession

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "unisono.tools.pytest_plugin", "-p", "no:cacheprovider")

TESTS = """
import os
import pytest
import unisono

@pytest.mark.ranks(1, 2)
def test_fails():
    assert unisono.get_rank() == os.getenv("RIGHT")

@pytest.mark.ranks(2)
@pytest.mark.parametrize("number", range(4))
def test_passes(number):
    unisono.barrier()
"""


def test_first_failure_ends_and_is_run_again(ranks_session: RanksSession) -> None:
    ranks_session("-x", test_it=TESTS).assert_outcomes(failed=1)
    ranks_session(test_it=TESTS).assert_outcomes(failed=2, passed=4)
    ranks_session("--lf").assert_outcomes(failed=2)


COLLECTS = """
from pathlib import Path
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtestloop():
    try:
        return (yield)
    finally:  # as pytest-cov does: what ranks write at their end must be there
        pids = [path.read_text() for path in Path().glob("rank*")]
        print(len(pids), "ranks,", sum(Path(f"/proc/{pid}").exists() for pid in pids), "are there")
"""
INTERRUPTED = """
import os, signal, time
from pathlib import Path
import pytest
import unisono

@pytest.fixture
def parent():
    return os.getpid()

@pytest.mark.ranks(2)
def test_waits(parent):
    Path(f"rank{unisono.get_rank()}").write_text(f"{os.getpid()}")
    unisono.barrier()
    if unisono.get_rank() == 0 and os.getenv("INTERRUPTS"):
        os.kill(parent, signal.SIGINT)
        time.sleep(100)
"""


@pytest.mark.parametrize("interrupts", ["", "yes"])
def test_ranks_end_before_plugins_collect_files(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, interrupts: str
) -> None:
    monkeypatch.setenv("INTERRUPTS", interrupts)
    pytester.makepyfile(test_it=INTERRUPTED, conftest=COLLECTS)
    done = pytester.runpytest_subprocess(*PLUGIN, "-s", "--ranks-timeout", "60")
    assert done.ret == (pytest.ExitCode.INTERRUPTED if interrupts else 0)
    assert ("KeyboardInterrupt" in done.stdout.str()) == bool(interrupts)
    assert "2 ranks, 0 are there" in done.stdout.str()


@pytest.mark.cold
def test_session_without_such_tests_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass")
    code = (
        f"import pytest, sys; print(+pytest.main([{str(PLUGIN)[1:-1]}]));"
        "print(sorted(name for name in sys.modules if name.startswith(('unisono', 'torch', 'numpy'))))"
    )
    done = run_python("-c", code, check=True, cwd=tmp_path)
    loaded = ["unisono", "unisono.base", "unisono.base.release", "unisono.tools", "unisono.tools.pytest_plugin"]
    assert done.stdout.splitlines()[-2:] == ["0", str(loaded)]


PAGE = ROOT / "docs" / "guides" / "own_tests.md"


def test_example_project_passes(ranks_session: RanksSession, pytester: pytest.Pytester) -> None:
    shutil.copytree(ROOT / "examples" / "tested", pytester.path, dirs_exist_ok=True)
    ranks_session().assert_outcomes(passed=6)


def test_page_prints_what_it_shows(ranks_session: RanksSession) -> None:
    first, failures = (block.text for block in blocks(PAGE) if "pytest.mark.ranks" in block.text)
    done = ranks_session(test_first=first, test_failures=failures)
    done.assert_outcomes(passed=2, failed=2)
    fences = re.findall(r"^```(.*?)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    shown = "".join(text for language, text in fences if not language).splitlines()
    printed = {plain(line) for line in done.stdout.lines}
    assert len(shown) >= 12
    assert not [line for line in shown if plain(line) not in printed]


def plain(line: str) -> str:
    """Without the folder of a file; and either rank may be the first that fails."""
    return re.sub(r"rank [01]|\[1?0\]", "...", re.sub(r'File ".*/', 'File "', line))
