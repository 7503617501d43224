"""DeepSpeed on CPUs, ZeRO stages 1 and 2: torchrun deepspeed_training.py BACKEND DIRECTORY."""

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import distributed, nn

STEPS = 6


def train(stage: int, rank: int) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    generator = torch.Generator().manual_seed(rank)
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    losses = []
    for _ in range(STEPS):
        loss = engine(torch.randn(8, 16, generator=generator)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def main(backend: str, directory: str) -> None:
    deepspeed.init_distributed(dist_backend=backend)
    rank = distributed.get_rank()
    found: dict[str, Any] = {
        "group": type(distributed.group.WORLD).__name__,
        "processes": distributed.get_world_size(),
        "losses": [train(stage, rank) for stage in (1, 2)],
    }
    Path(directory, f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


main(*sys.argv[1:])
