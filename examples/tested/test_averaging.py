"""Each test runs on every rank: on 2, and again on 4."""

from __future__ import annotations

import pytest
import torch
from averaging import average
from torch import distributed as dist

pytestmark = pytest.mark.ranks(2, 4, backend="gloo")


@pytest.fixture
def model() -> torch.nn.Linear:
    """The ranks get copies of it."""
    return torch.nn.Linear(3, 1)


def test_all_ranks_have_the_mean(model: torch.nn.Linear) -> None:
    model.bias.data.fill_(dist.get_rank())
    average(model)
    assert model.bias.item() == (dist.get_world_size() - 1) / 2


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_equal_models_stay_as_they_are(model: torch.nn.Linear, scale: float) -> None:
    model.weight.data *= scale
    before = model.weight.data.clone()
    average(model)
    assert torch.allclose(model.weight.data, before)
