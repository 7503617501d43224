"""Data-parallel training: each rank takes its share of every batch, and the ranks average their gradients.

All ranks then make the same step, so the losses are those of one process with the whole batch, up to rounding.
The model learns to guess the next character of the sources of Python's standard library.

    python examples/data_parallel.py
    torchrun --nproc-per-node 2 examples/data_parallel.py
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

import unisono
from unisono import average_gradients

STEPS, BATCH, CONTEXT = 60, 120, 6


def train() -> list[float]:
    """Train on this rank; return the loss over the whole batch at each step."""
    rank, ranks = unisono.get_rank(), unisono.get_world_size()
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8) % 128

    torch.manual_seed(0)  # the same weights and the same batches on every rank
    model = nn.Sequential(nn.Embedding(128, 8), nn.Flatten(), nn.Linear(8 * CONTEXT, 96), nn.Tanh(), nn.Linear(96, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(STEPS):
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1))
        mine = text[starts + torch.arange(CONTEXT + 1)].long().chunk(ranks)[rank]
        loss = nn.functional.cross_entropy(model(mine[:, :-1]), mine[:, -1])
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)  # the shares are of one size, so these are the gradients of the whole batch
        optimizer.step()
        whole = loss.detach()
        unisono.all_reduce(whole, op="avg")
        losses.append(whole.item())
    return losses


if torch.distributed.is_torchelastic_launched():  # torchrun has started the ranks: this process is one of them
    losses = train()
    if unisono.get_rank() == 0:
        print(f"{unisono.get_world_size()} ranks: loss {losses[0]:.4f} falls to {losses[-1]:.4f}")
else:
    alone, together = (unisono.run(train, ranks=ranks)[0] for ranks in (1, 4))  # one: plain training
    for step in range(0, STEPS, 10):
        print(f"step {step:2}: loss {alone[step]:.6f} with one rank, {together[step]:.6f} with four")
    print(f"at most {max(abs(a - b) for a, b in zip(alone, together, strict=True)):.1g} apart")
