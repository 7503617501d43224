"""Sessions of pytest with tests on ranks: some end early, share their work, have no such tests, or are on the pages."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.support.markdown import ROOT, blocks
from tests.support.programs import run_python
from tests.support.waiting import until
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


@pytest.mark.long  # this suite itself is run by two processes
def test_several_processes_share_the_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    done = pytester.runpytest_subprocess(*PLUGIN, "-n", "4")
    done.assert_outcomes(failed=2, passed=4)
    assert "rank 1 raised AssertionError: assert 1 == None" in done.stdout.str()


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
    if unisono.get_rank() == 0:
        os.kill(parent, signal.SIGINT)
    time.sleep(100)
"""


def test_interrupt_ends_pytest_and_the_ranks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=INTERRUPTED)
    done = pytester.runpytest_subprocess(*PLUGIN, "--ranks-timeout", "60")
    assert done.ret == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in done.stdout.str()
    pids = [int((pytester.path / f"rank{rank}").read_text()) for rank in range(2)]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


COLLECTS = """
from pathlib import Path
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtestloop():
    result = yield
    pids = [path.read_text() for path in Path().glob("pid*")]
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    return result
"""


def test_ranks_end_before_plugins_collect_files(ranks_session: RanksSession) -> None:
    """As pytest-cov does: what ranks write at their end must be there."""
    body = "Path(f'pid{unisono.get_rank()}').write_text(str(os.getpid()))"
    header = "import os, pytest, unisono\nfrom pathlib import Path\n"
    done = ranks_session(test_it=f"{header}@pytest.mark.ranks(2)\ndef test(): {body}", conftest=COLLECTS)
    assert done.ret == 0, done.stderr.str()


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


def test_pytest_finds_the_plug_in() -> None:
    """By the name of its module: so a session may name it, too, without loading it twice."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    name = PLUGIN[1]
    assert project["entry-points"]["pytest11"] == {name: name}


PAGE = ROOT / "docs" / "guides" / "own_tests.md"


def test_example_project_passes(ranks_session: RanksSession, pytester: pytest.Pytester) -> None:
    shutil.copytree(ROOT / "examples" / "tested", pytester.path, dirs_exist_ok=True)
    ranks_session().assert_outcomes(passed=6)


def test_page_prints_what_it_shows(ranks_session: RanksSession) -> None:
    tests = [block.text for block in blocks(PAGE) if "pytest.mark.ranks" in block.text]
    first, failures = tests
    assert PAGE.read_text().startswith(f"# Test your own programs\n\n```python\n{first}```\n")
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
