"""Train apart, then average: four ranks fit a small model to their own text each, and the average beats them all.

Each rank sees a fifth of the sources of Python's standard library and learns to guess the next character; the last
fifth is the test. Now and then the ranks replace their weights by the average of all: federated averaging, or local
SGD (McMahan et al. 2017), which needs far fewer messages than averaging the gradients of every step.

    python examples/averaging_models.py
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

import unisono
from unisono import average_parameters

RANKS, ROUNDS, STEPS, CONTEXT = 4, 5, 120, 6


def windows(text: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Characters drawn from the text, and those that come before each: (count, CONTEXT) and (count,)."""
    starts = torch.randint(len(text) - CONTEXT, (count, 1))
    drawn = text[starts + torch.arange(CONTEXT + 1)].long()
    return drawn[:, :-1], drawn[:, -1]


def work() -> list[tuple[float, float]]:
    """Train on this rank's share. Per round: the accuracy of its own model, and of the average of all."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8) % 128
    *shares, unseen = text.chunk(RANKS + 1)

    torch.manual_seed(0)  # all start with the same weights: the average of unlike models is no model
    model = nn.Sequential(nn.Embedding(128, 8), nn.Flatten(), nn.Linear(8 * CONTEXT, 96), nn.Tanh(), nn.Linear(96, 128))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    questions, answers = windows(unseen, 4000)
    accuracies = []
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            inputs, targets = windows(shares[unisono.get_rank()], 32)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        own = (model(questions).argmax(dim=1) == answers).float().mean().item()
        average_parameters(model)
        average = (model(questions).argmax(dim=1) == answers).float().mean().item()
        accuracies.append((own, average))
    return accuracies


for number, seen in enumerate(zip(*unisono.run(work, ranks=RANKS), strict=True), start=1):
    alone = " ".join(f"{own:.1%}" for own, _ in seen)
    print(f"round {number}: of the next characters the ranks guess {alone}, and their average {seen[0][1]:.1%}")
