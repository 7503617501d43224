"""PyTorch's own tests of torch.distributed: under Gloo's name no fewer of them pass than over Gloo, but for a list."""

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.programs import run_python

ROOT, FILE, LIMIT_S = Path(__file__).parents[3], Path(__file__).with_name("suite.py"), 1800

pytestmark = pytest.mark.cold  # the name is read as torch is imported

FEWER = {"test_ddp_logging_data_cpu": "C++ code asks ours for its backend's name, and would take gloo for torch's own"}
"""What passes over Gloo alone, and why. PyTorch's wheel has not all its tests: not `test_c10d_gloo.py`."""


def ends(folder: Path, **settings: str) -> dict[str, str]:
    """How each test has ended: "passed", or what its report says."""
    report = folder / "report.xml"
    words = "-m", "pytest", "-c", os.devnull, "--rootdir", ROOT, "--noconftest", "--junitxml", report, FILE
    folder.mkdir()
    done = run_python(*words, env={**os.environ, **settings, "TEMP_DIR": str(folder)}, cwd=ROOT, timeout=LIMIT_S)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    cases = ElementTree.parse(report).iter("testcase")  # noqa: S314  pytest has written it
    return {
        one.attrib["name"]: " ".join(f"{end.tag}: {end.get('message')}" for end in one) or "passed" for one in cases
    }


@pytest.mark.long
@pytest.mark.timeout(2 * LIMIT_S + 20)
def test_no_fewer_pass_under_the_name(tmp_path: Path) -> None:
    named, gloo = (ends(tmp_path / f"as {way}", UNISONO_AS=way) for way in ("gloo", ""))
    fewer = {test: named[test] for test, end in gloo.items() if end == "passed" and named[test] != "passed"}
    assert fewer.keys() <= FEWER.keys(), fewer
    assert [test for test in FEWER if named[test] == "passed"] == []
    assert list(gloo.values()).count("passed") > 90
