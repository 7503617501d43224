"""A wait for messages takes little of a processor."""

import time
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from unisono.ranks.failures.attend import Watch

WAIT_S = 4.0


@pytest.mark.long
@in_new_world(2, hosts="2x1")
def test_wait_for_a_host_leaves_the_processor() -> None:
    tensor = torch.ones(4)
    unisono.all_reduce(tensor)
    with patch.object(Watch, "look", autospec=True, side_effect=Watch.look) as look:
        before = time.process_time()
        if unisono.get_rank() == 1:
            time.sleep(WAIT_S)
        unisono.all_reduce(tensor)
        took_s = time.process_time() - before
    assert unisono.get_rank() or (took_s < 0.06 * WAIT_S and 0 < look.call_count < 60)
