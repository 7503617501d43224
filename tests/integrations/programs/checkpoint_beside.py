"""Checkpoints in the background, in a group of their own: torchrun checkpoint_beside.py BACKEND DIRECTORY."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def made() -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def step(model: Any, optimizer: torch.optim.Optimizer, number: int) -> float:
    torch.manual_seed(10 * number + distributed.get_rank())
    optimizer.zero_grad()
    loss = model(torch.randn(6, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss)


def main(backend: str, directory: str) -> None:
    distributed.init_process_group(backend)
    beside = distributed.new_group(backend=backend)
    model, optimizer = made()
    losses = [step(model, optimizer, number) for number in range(3)]
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    saving: Any = checkpoint.async_save(state, checkpoint_id=Path(directory, "saved"), process_group=beside)
    losses.append(step(model, optimizer, 3))  # while it is written
    saving.result()
    model, optimizer = made()
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    checkpoint.load(state, checkpoint_id=Path(directory, "saved"), process_group=beside)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    again = step(model, optimizer, 3)
    result = {"group": type(distributed.group.WORLD).__name__, "losses": losses, "again": again}
    Path(directory, f"{os.environ['RANK']}.json").write_text(json.dumps(result))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
