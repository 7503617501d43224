"""What holds on one host holds over two: tests of other files, on ranks that meet as if on two machines."""

from collections.abc import Callable
from pathlib import Path

import pytest

import unisono
from tests.integrations.torch.test_abort import test_every_wait_ends  # noqa: F401
from tests.integrations.torch.test_calls import (  # noqa: F401
    test_coalesced_calls,
    test_collectives_messages_and_objects,
    test_older_names_of_calls,
    test_sparse_tensors,
)
from tests.integrations.torch.test_checkpoints import (  # noqa: F401
    test_a_checkpoint_is_loaded_by_another_number_of_ranks,
    test_states_of_what_is_sharded,
)
from tests.integrations.torch.test_data_parallel import test_calls_out_of_callbacks_of_several_buckets  # noqa: F401
from tests.integrations.torch.test_direct import (  # noqa: F401
    test_a_model_s_parameters_are_sent_between_forward_passes,
    test_distribute_tensor_leaves_views_usable,
)
from tests.integrations.torch.test_errors import test_ranks_that_miss_a_monitored_barrier  # noqa: F401
from tests.integrations.torch.test_gradients import test_functional_collectives  # noqa: F401
from tests.integrations.torch.test_groups import test_many_sub_groups_leave_nothing_behind  # noqa: F401
from tests.integrations.torch.test_sharded import (  # noqa: F401
    test_a_stage_on_each_rank,
    test_layouts_of_a_tensor_on_a_mesh,
    test_stages_that_are_replicated,
    test_wrapped_and_sharded,
)
from tests.support.torch_ranks import TorchRanks, two_hosts


@pytest.fixture
def ranks(worlds: Callable[[int], unisono.World], tmp_path: Path) -> TorchRanks:
    """ranks(4)(function): the function on 2 + 2 ranks of a process group over two hosts."""
    return TorchRanks(worlds, tmp_path, two_hosts)
