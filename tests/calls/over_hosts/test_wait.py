"""A wait for messages takes little of a processor."""

import time
from unittest.mock import patch

import pytest
import torch

import unisono
from unisono.ranks.failures.attend import Watch

WAIT_S = 4.0


@pytest.mark.long
def test_a_rank_that_waits_for_another_host_leaves_its_processor_to_others() -> None:
    def work() -> tuple[float, int]:
        tensor = torch.ones(4)
        unisono.all_reduce(tensor)
        with patch.object(Watch, "look", autospec=True, side_effect=Watch.look) as look:
            before = time.process_time()
            if unisono.get_rank() == 1:
                time.sleep(WAIT_S)
            unisono.all_reduce(tensor)
            return time.process_time() - before, look.call_count

    took_s, looks = unisono.run(work, 2, hosts="2x1", timeout_s=90)[0]
    assert took_s < 0.06 * WAIT_S
    assert 0 < looks < 60
