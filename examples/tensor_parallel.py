"""Tensor parallelism: one linear layer y = x W over four ranks, W split by columns or by rows (Shoeybi et al. 2019).

Split by columns, each rank computes some of the outputs, and an all_gather collects them. Split by rows, each rank
computes a part of every output, and an all_reduce adds the parts. Either way a rank holds a quarter of the weights, and
the gradient of that quarter needs nothing from other ranks. The results are compared with those of the whole layer.

    python examples/tensor_parallel.py
"""

from __future__ import annotations

import torch

import unisono

RANKS, BATCH, INPUTS, OUTPUTS = 4, 32, 64, 48


def layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, weights and targets: the same on every rank, which takes its part of them."""
    torch.manual_seed(0)
    shapes = (BATCH, INPUTS), (INPUTS, OUTPUTS), (BATCH, OUTPUTS)
    x, weights, target = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return x, weights, target


def by_columns() -> tuple[torch.Tensor, torch.Tensor]:
    """The whole output, and the gradient of this rank's columns, for the loss sum((y - target)²) / 2."""
    rank, (x, weights, target) = unisono.get_rank(), layer()
    mine = weights.chunk(RANKS, dim=1)[rank].clone().requires_grad_()
    part = x @ mine
    parts = [torch.empty_like(part) for _ in range(RANKS)]
    unisono.all_gather(parts, part.detach())
    y = torch.cat(parts, dim=1)
    (gradient,) = torch.autograd.grad(part, mine, (y - target).chunk(RANKS, dim=1)[rank])  # of these outputs only
    return y, gradient


def by_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """The whole output, and the gradient of this rank's rows."""
    rank, (x, weights, target) = unisono.get_rank(), layer()
    mine = weights.chunk(RANKS)[rank].clone().requires_grad_()
    part = x.chunk(RANKS, dim=1)[rank] @ mine
    y = part.detach().clone()
    unisono.all_reduce(y)
    (gradient,) = torch.autograd.grad(part, mine, y - target)  # y is this part plus those of others
    return y, gradient


x, weights, target = layer()
weights.requires_grad_()
whole = x @ weights
(expected,) = torch.autograd.grad(((whole - target) ** 2 / 2).sum(), weights)
for split, dim in ((by_columns, 1), (by_rows, 0)):
    outputs, gradients = zip(*unisono.run(split, ranks=RANKS), strict=True)
    y_apart = max((y - whole).abs().max().item() for y in outputs)
    gradient_apart = (torch.cat(gradients, dim) - expected).abs().max().item()
    print(f"{split.__name__}: {RANKS} ranks with {tuple(gradients[0].shape)} of {tuple(weights.shape)} weights each")
    print(f"  from the whole layer: outputs at most {y_apart:.1g} apart, gradients {gradient_apart:.1g}")
