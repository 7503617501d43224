"""A sharded optimizer (ZeRO, Rajbhandari et al. 2020): every rank keeps the state of Adam for its share only.

Plain data-parallel training gives every rank all averaged gradients (all_reduce). Here a rank gets those of its share
(reduce_scatter), updates it, and sends it to all (all_gather): the same bytes and result with 1/p of the state.

    python examples/zero_optimizer.py
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

import unisono
from unisono.schedule import count
from unisono.schedule.choose import choose

RANKS, STEPS, BATCH, CONTEXT = 4, 30, 32, 6


def train(sharded: bool) -> tuple[torch.Tensor, int]:
    """Train on this rank; return all weights, and how many numbers of state its optimizer keeps."""
    text = torch.frombuffer(bytearray(Path(os.__file__).read_bytes()), dtype=torch.uint8) % 128
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(128, 8), nn.Flatten(), nn.Linear(8 * CONTEXT, 96), nn.Tanh(), nn.Linear(96, 128))
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()  # here as many as the ranks divide
    nn.utils.vector_to_parameters(weights, model.parameters())  # makes them views of the vector
    shard = weights.chunk(RANKS)[unisono.get_rank()].clone() if sharded else weights
    optimizer = torch.optim.Adam([shard])
    for _ in range(STEPS):
        starts = torch.randint(len(text) - CONTEXT, (BATCH * RANKS, 1))
        mine = text[starts + torch.arange(CONTEXT + 1)].long().chunk(RANKS)[unisono.get_rank()]
        model.zero_grad()
        nn.functional.cross_entropy(model(mine[:, :-1]), mine[:, -1]).backward()
        gradients = nn.utils.parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None])
        if sharded:
            shard.grad = torch.empty_like(shard)
            unisono.reduce_scatter_single(shard.grad, gradients, op="avg")
            optimizer.step()
            unisono.all_gather_single(weights, shard)
        else:
            unisono.all_reduce(gradients, op="avg")
            shard.grad = gradients
            optimizer.step()
    state = optimizer.state[shard]
    return weights, state["exp_avg"].numel() + state["exp_avg_sq"].numel()


(plain, plain_state), (zero, zero_state) = unisono.run(lambda: (train(False), train(True)), ranks=RANKS)[0]
psi = plain.numel()
print(f"{psi} weights: Adam keeps {plain_state} numbers on every rank, sharded {zero_state}")
for collectives in (("all_reduce",), ("reduce_scatter", "all_gather")):
    tables = [choose(collective, psi * 4, RANKS).algorithm.schedule(RANKS) for collective in collectives]
    sent = sum(count(table).most_sent for table in tables)  # 2 (p-1)/p psi; the paper rounds up
    print(f"{' + '.join(collectives)}: a rank sends {sent} psi (paper: 2 psi), {sent * psi * 4:,.0f} bytes, per step")
print(f"weights at most {(plain - zero).abs().max().item():.1g} apart after {STEPS} steps")
