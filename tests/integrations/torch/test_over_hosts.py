"""What holds on one host holds over two: tests of other files whose ranks a fixture makes. Others have `hosts=`."""

from collections.abc import Callable
from pathlib import Path

import pytest

import unisono
from tests.integrations.torch.test_checkpoints import (  # noqa: F401
    test_checkpoint_loads_on_fewer_ranks,
    test_states_of_what_is_sharded,
)
from tests.integrations.torch.test_compiled import test_functional_collectives  # noqa: F401
from tests.integrations.torch.test_data_parallel import (  # noqa: F401
    test_callbacks_of_several_buckets_make_calls,
    test_ranks_with_fewer_batches_join,
)
from tests.integrations.torch.test_direct import (  # noqa: F401
    test_distribute_tensor_leaves_views_usable,
    test_parameters_are_sent_between_passes,
)
from tests.integrations.torch.test_sharded import test_wrapped_and_sharded  # noqa: F401
from tests.support.torch_ranks import TorchRanks, two_hosts


@pytest.fixture
def ranks(worlds: Callable[[int], unisono.World], tmp_path: Path) -> TorchRanks:
    """ranks(4)(function): the function on 2 + 2 ranks of a process group over two hosts."""
    return TorchRanks(worlds, tmp_path, two_hosts)
