"""What is shown of tests on ranks is so: the example project, and the tests and failures of the page."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.support.markdown import ROOT, blocks
from tests.tools.pytest_plugin.conftest import RanksSession

pytest_plugins = ["pytester"]

PAGE = ROOT / "docs" / "guides" / "own_tests.md"


def test_the_example_project(ranks_session: RanksSession, pytester: pytest.Pytester) -> None:
    shutil.copytree(ROOT / "examples" / "tested", pytester.path, dirs_exist_ok=True)
    ranks_session().assert_outcomes(passed=6)


def test_the_page(ranks_session: RanksSession) -> None:
    tests = [block.text for block in blocks(PAGE) if "pytest.mark.ranks" in block.text]
    first, failures, chaos = tests
    assert PAGE.read_text().startswith(f"# Test your own programs\n\n```python\n{first}```\n")
    done = ranks_session(test_first=first, test_failures=failures, test_chaos=chaos)
    done.assert_outcomes(passed=3, failed=2)
    fences = re.findall(r"^```(.*?)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    shown = "".join(text for language, text in fences if not language).splitlines()
    printed = {plain(line) for line in done.stdout.lines}
    assert len(shown) >= 12
    assert not [line for line in shown if plain(line) not in printed]


def plain(line: str) -> str:
    """Without the folder of a file; and either rank may be the first that fails."""
    return re.sub(r"rank [01]|\[1?0\]", "...", re.sub(r'File ".*/', 'File "', line))
