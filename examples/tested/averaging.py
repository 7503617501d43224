"""Average a model over all ranks."""

from __future__ import annotations

import torch
from torch import distributed as dist


def average(model: torch.nn.Module) -> None:
    """Give all ranks the mean of their weights."""
    for weights in model.parameters():
        dist.all_reduce(weights.data)
        weights.data /= dist.get_world_size()
