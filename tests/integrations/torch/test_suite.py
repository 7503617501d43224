"""PyTorch's own tests of torch.distributed, those that its wheel has, with "gloo", on CPUs.

Under Gloo's name no fewer of them pass than over Gloo, but for a list. PyTorch starts the ranks of each test anew. Here
they are forked from the process of pytest, which has loaded torch and the tests: the test starts it on this file.
"""

import multiprocessing
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.programs import run_python

ROOT, LIMIT_S = Path(__file__).parents[3], 1800
FEWER = {"test_ddp_logging_data_cpu": "C++ code asks ours for its backend's name, and would take gloo for torch's own"}
"""What passes over Gloo alone, and why. PyTorch's wheel has not all its tests: not `test_c10d_gloo.py`."""


def ends(folder: Path, name: str) -> dict[str, str]:
    """How each test has ended: "passed", or what its report says. name: in UNISONO_AS."""
    report = folder / "report.xml"
    words = "-m", "pytest", "-c", os.devnull, "--rootdir", ROOT, "--noconftest", "--junitxml", report, __file__
    folder.mkdir()
    settings = {  # read as torch and its tests are imported
        "BACKEND": "gloo",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60",
        "INIT_METHOD": f"file://{folder}/meeting",
        "MASTER_ADDR": "localhost",
        "OMP_NUM_THREADS": "1",
        "TEMP_DIR": str(folder),
        "UNISONO_AS": name,
        "WORLD_SIZE": "4",  # with which PyTorch's tests leave out none for want of ranks
    }
    done = run_python(*words, env={**os.environ, **settings}, cwd=ROOT, timeout=LIMIT_S)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    cases = ElementTree.parse(report).iter("testcase")  # noqa: S314  pytest has written it
    return {
        one.attrib["name"]: " ".join(f"{end.tag}: {end.get('message')}" for end in one) or "passed" for one in cases
    }


if "TEMP_DIR" not in os.environ:

    @pytest.mark.cold
    @pytest.mark.long
    @pytest.mark.timeout(2 * LIMIT_S + 20)
    def test_no_fewer_pass_under_the_name(tmp_path: Path) -> None:
        named, gloo = (ends(tmp_path / f"as {name}", name) for name in ("gloo", ""))
        fewer = {test: named[test] for test, end in gloo.items() if end == "passed" and named[test] != "passed"}
        assert fewer.keys() <= FEWER.keys(), fewer
        assert [test for test in FEWER if named[test] == "passed"] == []
        assert list(gloo.values()).count("passed") > 90

else:
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.distributed import ddp_under_dist_autograd_test as beside_rpc
    from torch.testing._internal.distributed import distributed_test
    from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture

    class Forked(MultiProcessTestCase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

    class TestDistributed(Forked, distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        pass

    class TestBesideRpc(Forked, TensorPipeRpcAgentTestFixture, beside_rpc.DdpComparisonTest):
        pass

    def called_asynchronous(original: Any) -> Any:
        """Only C++ code can mark a profiler's event as asynchronous: what tests find of our events is marked here."""

        def get_profiling_event(*args: Any, **options: Any) -> list[Any]:
            events: list[Any] = original(*args, **options)
            for event in events:
                event.is_async = True
            return events

        return get_profiling_event

    if os.environ["UNISONO_AS"]:
        distributed_test.get_profiling_event = called_asynchronous(distributed_test.get_profiling_event)
