"""Runs PyTorch's own tests of torch.distributed, those that its wheel has, with "gloo", on CPUs.

python -m tests.integrations.torch.suite FILE [TEST ...]   writes to the file, as JSON, how each test has ended

PyTorch starts the ranks of each test anew. Here they are forked from this process, which has
loaded torch and the tests.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RANKS = 4  # the number with which PyTorch's tests leave out none for want of ranks


def cases(directory: str) -> list[type[unittest.TestCase]]:
    """The classes of tests, which read the environment as they are imported. directory: empty."""
    os.environ |= {
        "BACKEND": "gloo",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60",
        "INIT_METHOD": f"file://{directory}/meeting",
        "MASTER_ADDR": "localhost",
        "OMP_NUM_THREADS": "1",
        "TEMP_DIR": directory,
        "WORLD_SIZE": str(RANKS),
    }
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.distributed import ddp_under_dist_autograd_test as beside_rpc
    from torch.testing._internal.distributed import distributed_test
    from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture

    class Forked(MultiProcessTestCase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

    class Distributed(Forked, distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        pass

    class BesideRpc(Forked, TensorPipeRpcAgentTestFixture, beside_rpc.DdpComparisonTest):
        pass

    if os.environ.get("UNISONO_AS"):
        distributed_test.get_profiling_event = called_asynchronous(distributed_test.get_profiling_event)
    return [Distributed, BesideRpc]


def called_asynchronous(original: Any) -> Any:
    """Only C++ code can mark an event of a profiler as asynchronous: what tests find of our events is marked here."""

    def get_profiling_event(*args: Any, **options: Any) -> list[Any]:
        events: list[Any] = original(*args, **options)
        for event in events:
            event.is_async = True
        return events

    return get_profiling_event


class Ends(unittest.TestResult):
    """How tests have ended: "passed", "skipped: " and why, or what went wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def _ended(self, test: unittest.TestCase, how: str) -> None:
        name = test.id().rpartition(".")[2]
        self.found[name] = how
        sys.stderr.write(f"{name}: {how}\n")

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802  unittest's name
        self._ended(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._ended(test, f"skipped: {reason}")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._ended(test, self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addFailure = addError  # noqa: N815


def chosen(directory: str, names: list[str]) -> Iterator[unittest.TestCase]:
    """The tests of these names, or all."""
    for case in cases(directory):
        for name in unittest.defaultTestLoader.getTestCaseNames(case):
            if not names or name in names:
                yield case(name)


def main(file: str, *names: str) -> None:
    """Run the tests."""
    ends = Ends()
    with tempfile.TemporaryDirectory() as directory:
        unittest.TestSuite(chosen(directory, [*names])).run(ends)
    Path(file).write_text(json.dumps(ends.found))


if __name__ == "__main__":
    main(*sys.argv[1:])
