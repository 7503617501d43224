"""A pipeline of ranks: send and recv pass tensors from one rank to the next, and their gradients back.

Each rank has one layer of a model. A batch is cut into parts, so that the ranks work at once: while one computes its
layer for a part, the rank before it computes the next part (Huang et al. 2019). Checked against the whole model.

    python examples/point_to_point.py
"""

from __future__ import annotations

import torch
from torch import nn

import unisono
from unisono.p2p import recv, send

RANKS, PARTS, BATCH, WIDTH = 4, 8, 64, 16


def whole() -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """The model, its inputs and targets: the same on every rank, which takes its part of them."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(RANKS)]
    return nn.Sequential(*layers), torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)


def work() -> torch.Tensor:
    """Run all parts through this rank's layer, forwards and backwards; return the gradient of its weights."""
    rank, last = unisono.get_rank(), RANKS - 1
    model, inputs, targets = whole()
    layer, passed = model[rank], []
    for part in inputs.chunk(PARTS):
        x = part if rank == 0 else torch.empty_like(part)
        if rank > 0:
            recv(x, src=rank - 1)
        y = layer(x.requires_grad_())
        if rank < last:
            send(y.detach(), dst=rank + 1)
        passed.append((x, y))
    for (x, y), target in zip(passed, targets.chunk(PARTS), strict=True):
        gradient = y.detach() - target if rank == last else torch.empty_like(y)  # of sum((y - target)²) / 2
        if rank < last:
            recv(gradient, src=rank + 1)
        y.backward(gradient)  # adds to the gradient of the weights, and makes that of the input
        if rank > 0:
            send(x.grad, dst=rank - 1)
    return layer[0].weight.grad


model, inputs, targets = whole()
((model(inputs) - targets) ** 2 / 2).sum().backward()
for rank, gradient in enumerate(unisono.run(work, ranks=RANKS)):
    expected = model[rank][0].weight.grad
    apart = (gradient - expected).abs().max().item()
    print(f"rank {rank}: gradient up to {gradient.abs().max().item():.3f}, {apart:.1g} from that of the whole model")
