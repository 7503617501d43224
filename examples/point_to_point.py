"""A pipeline of ranks: send and recv pass tensors from one rank to the next, and their gradients back.

Each rank has one layer of a model. A batch is cut into parts, so that the ranks work at the same time: while one
computes its layer for a part, the rank before it computes the next part (Huang et al. 2019). The results are compared
with those of the whole model.

    python examples/point_to_point.py
"""

from __future__ import annotations

import torch
from torch import nn

import unisono
from unisono import recv, send

RANKS, PARTS, BATCH, WIDTH = 4, 8, 64, 16


def whole() -> tuple[list[nn.Linear], torch.Tensor, torch.Tensor]:
    """The model's layers, its inputs and targets: the same on every rank, which takes its part of them."""
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH) for _ in range(RANKS)], torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)


def work() -> torch.Tensor:
    """Run all parts through this rank's layer, forwards and backwards; return the gradient of its weights."""
    rank, last = unisono.get_rank(), RANKS - 1
    layers, inputs, targets = whole()
    layer, passed = layers[rank], []
    for part in inputs.chunk(PARTS):
        x = part if rank == 0 else torch.empty_like(part)
        if rank > 0:
            recv(x, src=rank - 1)
        y = layer(x.requires_grad_()).tanh()
        if rank < last:
            send(y.detach(), dst=rank + 1)
        passed.append((x, y))
    for (x, y), target in zip(passed, targets.chunk(PARTS), strict=True):
        gradient = y.detach() - target if rank == last else torch.empty_like(y)  # of sum((y - target)²) / 2
        if rank < last:
            recv(gradient, src=rank + 1)
        y.backward(gradient)  # adds to the gradient of the weights, and makes that of the input
        if rank > 0 and x.grad is not None:
            send(x.grad, dst=rank - 1)
    return torch.zeros_like(layer.weight) if layer.weight.grad is None else layer.weight.grad


layers, inputs, targets = whole()
outputs = inputs
for layer in layers:
    outputs = layer(outputs).tanh()
expected = torch.autograd.grad(((outputs - targets) ** 2 / 2).sum(), [layer.weight for layer in layers])
for rank, gradient in enumerate(unisono.run(work, ranks=RANKS)):
    apart = (gradient - expected[rank]).abs().max().item()
    print(f"rank {rank}: gradient up to {gradient.abs().max().item():.3f}, {apart:.1g} from that of the whole model")
