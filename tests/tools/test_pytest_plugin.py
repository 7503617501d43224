"""The mark `ranks` in sessions of pytest: what such tests can do, how failures read, and how sessions end."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import unisono.tools.pytest_plugin.warm_worlds  # noqa: F401  so inner sessions share the process that forks ranks
from tests.support.markdown import ROOT, blocks
from tests.support.programs import run_python

pytest_plugins = ["pytester"]

RanksSession = Callable[..., pytest.RunResult]


@pytest.fixture
def ranks_session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RanksSession:
    """ranks_session(*options, name=text, ...): a session of pytest on files of these names, in this process."""
    monkeypatch.delenv("CI", raising=False)  # where it is set, pytest explains asserts at greater length

    def run(*options: str, **files: str) -> pytest.RunResult:
        if files:
            pytester.makepyfile(**files)
        return pytester.runpytest_inprocess("-p", "no:instafail", *options)  # it finds the plug-in by its entry point

    return run


TESTS = """
import asyncio, ctypes, dataclasses, os, pickle, sys, threading, time, types, unittest

import pytest
import torch
import unisono
from torch import distributed as dist

LOCK = threading.Lock()
pytestmark = pytest.mark.ranks(2)

class Odd(Exception):
    def __init__(self, number, why):
        self.lock = threading.Lock()

@dataclasses.dataclass
class Point:
    x: int

@pytest.fixture
def lock():
    return LOCK

@pytest.fixture
def three(monkeypatch, tmp_path, lock):
    monkeypatch.setenv("SAID_BY_A_FIXTURE", "yes")
    monkeypatch.chdir(tmp_path)
    return torch.tensor([3.0])

@pytest.mark.parametrize("word", ["one", "two"])
@pytest.mark.ranks(1, 2, hosts="2x1")
def test_cases(ranks, word, tmp_path):
    assert unisono.get_world_size() == (2 if ranks == "2x1" else ranks)
    (tmp_path / f"{word}{unisono.get_rank()}").touch()
    unisono.barrier()
    assert {path.name for path in tmp_path.iterdir()} == {f"{word}{rank}" for rank in range(unisono.get_world_size())}

def test_fixtures(three, monkeypatch, tmp_path):
    assert three == 3
    assert os.environ["SAID_BY_A_FIXTURE"] == "yes"
    assert os.getcwd() == str(tmp_path)
    monkeypatch.setattr(os, "is_patched", True, raising=False)

def test_nothing_stays():
    assert not hasattr(os, "is_patched")
    assert "SAID_BY_A_FIXTURE" not in os.environ

def test_classes_of_the_module():
    everybody = [None] * 2
    unisono.all_gather_object(everybody, Point(unisono.get_rank()), pickle=True)
    assert everybody == [Point(0), Point(1)]

class TestMethods:
    def test_a_method(self, ranks):
        assert unisono.get_world_size() == ranks

@pytest.mark.ranks(3)
class TestUnit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ready = 5

    def setUp(self):
        self.rank = unisono.get_rank()

    def test_passes(self):
        self.assertEqual((self.ready, self.rank), (5, unisono.get_rank()))

    def test_fails(self):
        self.assertTrue(self.rank != 1, self.rank)

    @unittest.expectedFailure
    def test_fails_as_expected(self):
        self.fail()

@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")

def test_is_measured(saved):
    path = saved / f"{unisono.get_rank()}"
    measured = types.SimpleNamespace(save=lambda: (path.touch(), sys.modules.pop("coverage")))
    sys.modules["coverage"] = types.SimpleNamespace(Coverage=types.SimpleNamespace(current=lambda: measured))

def test_what_was_measured_is_saved(saved):
    assert {path.name for path in saved.iterdir()} == {"0", "1"}

def test_skipped():
    pytest.skip("not today")

def test_expected():
    pytest.xfail("known")

@pytest.mark.xfail(raises=ZeroDivisionError)
def test_expected_error():
    1 / 0

def test_one_skips():
    if unisono.get_rank() == 1:
        pytest.skip("only here")
    with pytest.raises(unisono.PeerGone):
        unisono.barrier()
    raise ValueError("not skipped")

async def test_async():
    await asyncio.sleep(0)
    raise ValueError("awaited")

@pytest.mark.ranks(2, timeout_s=2.0)
def test_hangs_in_c():
    unisono.barrier()
    if unisono.get_rank() == 1:
        ctypes.PyDLL(None).usleep(100_000_000)  # it holds the interpreter
    unisono.barrier()

def test_exits():
    if unisono.get_rank() == 1:
        os._exit(3)
    unisono.barrier()

def test_after_a_crash():
    unisono.barrier()

def test_cannot_be_pickled():
    raise Odd(7, "because")

def test_breaks_its_world():
    unisono.shutdown()

def test_capsys(capsys):
    pass

def test_lock(lock):
    pass

def test_global():
    LOCK.acquire()

def test_prints_much():
    if unisono.get_rank() == 1:
        print("x" * 10_000_000)

@pytest.mark.ranks(3, backend="gloo")
def test_gloo_fails():
    if dist.get_rank() == 1:
        raise ValueError("only here")
    dist.barrier()

@pytest.mark.ranks(2, backend="gloo", timeout_s=2.0)
def test_gloo_hangs():
    if dist.get_rank() == 1:
        return
    dist.barrier()

@pytest.mark.ranks(2, backend="gloo")
def test_gloo_exits(tmp_path):
    if dist.get_rank() == 0:
        (tmp_path / "rank 0 has connected").touch()
        return
    while not [*tmp_path.iterdir()]:
        time.sleep(0.001)
    os._exit(3)

@pytest.mark.ranks(hosts="2x1", backend="unisono")
def test_our_backend():
    tensor = torch.tensor([dist.get_rank()])
    dist.all_reduce(tensor)
    assert tensor == 1
"""

GOOD = (
    "cases[1-one] cases[2-one] cases[2x1-one] cases[1-two] cases[2-two] cases[2x1-two] fixtures[2] nothing_stays[2] "
    "classes_of_the_module[2] a_method[2] is_measured[2] what_was_measured_is_saved[2] passes after_a_crash[2] "
    "breaks_its_world[2] prints_much[2] our_backend[2x1]"
)

SAID = {
    "fails": r"rank 1 raised AssertionError: False is not true : 1\n(.|\n)*in test_fails",
    "one_skips[2]": r"rank 1 raised unittest.case.SkipTest: only here\n(.|\n)*and rank 0 raised ValueError: not",
    "async[2]": r"rank \d raised ValueError: awaited\n",
    "hangs_in_c[2]": r"test_hangs_in_c\[2\] has not ended after 2 s(.|\n)*"
    r"  rank 0: test_many.py:\d+ in test_hangs_in_c, in a call of barrier\n"
    r"  rank 1: test_many.py:\d+ in test_hangs_in_c\n(.|\n)*"
    r"rank 1 was here:\n  File .*test_many.py\", line \d+ in test_hangs_in_c\n",
    "exits[2]": r"rank 1 failed:\nprocess \d+ exited with code 3\n(.|\n)*The ranks of this test have ended with it",
    "cannot_be_pickled[2]": r"rank \d raised test_many.Odd: \(7, 'because'\)\n(.|\n)*in test_cannot_be_pickled",
    "capsys[2]": "the fixture capsys cannot be sent to the ranks: a CaptureFixture works in pytest's process only",
    "lock[2]": r"the fixture lock cannot be sent to the ranks: it cannot be pickled \(cannot pickle '_thread.lock'",
    "global[2]": r"LOCK of test_many cannot be sent to the ranks .* Make it in the test",
    "gloo_fails[3]": r"rank 1 raised ValueError: only here\n(.|\n)*and rank 0 raised RuntimeError.*\n"
    r".*and rank 2 raised",
    "gloo_hangs[2]": r"  rank 0: test_many.py:\d+ in test_gloo_hangs, in a call of barrier\n"
    r"  rank 1: it(s stack shows no line of the test| has returned, and waits for the others)\n",  # both are true
    "gloo_exits[2]": r"\A\nrank 1 exited with code 3\n\nrank 1 failed:\nprocess \d+ exited with code 3\n-",
}
"""Test that fails -> what is said of it."""


def test_each_outcome(ranks_session: RanksSession) -> None:
    done = ranks_session("-vv", "-rA", test_many=TESTS)
    printed = done.stdout.str()
    results = re.findall(r"^(PASSED|FAILED|SKIPPED|XFAIL) .*?(?:::test_([^ \n]*)|: not today)", printed, re.MULTILINE)
    assert {name for kind, name in results if kind == "PASSED"} == set(GOOD.split())
    assert {name for kind, name in results if kind == "FAILED"} == set(SAID)
    assert sorted(kind for kind, _ in results if kind not in ("PASSED", "FAILED")) == ["SKIPPED", *["XFAIL"] * 3]
    assert re.search(r"^SKIPPED \[1\] test_many.py:\d+: not today", printed, re.MULTILINE)
    parts = re.split(r"^_+ (?:\w+\.)?test_([^ ]+) _+$", printed, flags=re.MULTILINE)
    told = dict(zip(parts[1::2], parts[2::2], strict=True))
    for name, said in SAID.items():
        assert re.search(said, told[name]), f"{name}: {told[name]}"
        assert "warm_worlds.py" not in told[name], name
        assert "rank_body.py" not in told[name], name
    assert "The ranks of this test have ended with it." in told["breaks_its_world[2]"]


def test_wrong_marks(ranks_session: RanksSession) -> None:
    test = "import pytest, unittest\n@pytest.mark.ranks({})\ndef test(): pass"
    wrong = ('"2x2"', "0", "", "4, size=3", "hosts=3", "2, timeout_s='x'", "2, backend=3")
    files = {f"test_{number}": test.format(mark) for number, mark in enumerate(wrong)}
    files["test_case"] = test.format("2, 3").replace(
        "def test()", "class Test(unittest.TestCase):\n  def test_it(self)"
    )
    done = ranks_session("--continue-on-collection-errors", **files)
    done.assert_outcomes(errors=len(wrong), failed=1)
    printed = done.stdout.str()
    assert not [mark for mark in wrong if f"ranks({mark}): give numbers of ranks".replace('"', "'") not in printed]
    assert "a method of a unittest.TestCase runs on one world" in printed


PLUGIN = ("-p", "unisono.tools.pytest_plugin", "-p", "no:cacheprovider")

FAILING = """
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
    ranks_session("-x", test_it=FAILING).assert_outcomes(failed=1)
    ranks_session(test_it=FAILING).assert_outcomes(failed=2, passed=4)
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
