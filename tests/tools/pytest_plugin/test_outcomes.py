"""What tests on ranks can do, and what is said of each that fails, beside the tests of the page on them."""

import re

from tests.tools.pytest_plugin.conftest import RanksSession

pytest_plugins = ["pytester"]

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
