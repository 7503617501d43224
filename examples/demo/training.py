"""Data-parallel training: every rank has the whole model and its own part of the text; gradients are averaged.

Model and loop are the same for both engines. They differ in the call that averages the gradients; and unisono's
gradients lie in shared memory, which saves copies.
"""

import functools
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

import unisono
from unisono.tools.cli.shared.timed_calls import start_gloo

from .model import LENGTH, CharacterModel, read_text

BATCH = 16
"""Windows of text per rank and step."""


@dataclass(frozen=True)
class Step:
    """One step as one rank saw it: its loss, and seconds computing, waiting for the slowest rank, and communicating."""

    loss: float
    compute_s: float
    wait_s: float
    communicate_s: float


def _average_with_unisono(gradients: torch.Tensor) -> None:
    unisono.all_reduce(gradients, op="avg")


def _average_with_gloo(gradients: torch.Tensor) -> None:
    dist.all_reduce(gradients)
    gradients /= dist.get_world_size()


class _Trainer:
    """A model, its optimizer, and all its gradients in one flat tensor, so that one call averages them."""

    def __init__(self, engine: str, folder: str) -> None:
        self.rank, self.ranks = unisono.get_rank(), unisono.get_world_size()
        torch.set_num_threads(1)
        torch.manual_seed(0)  # the same start on every rank
        self.model = CharacterModel()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        count = sum(parameter.numel() for parameter in self.model.parameters())
        self.average: Callable[[torch.Tensor], None]
        if engine == "Gloo":
            start_gloo(folder)
            self.gradients, self.average = torch.zeros(count), _average_with_gloo
        else:
            self.gradients, self.average = unisono.empty(count), _average_with_unisono
        at = 0
        for parameter in self.model.parameters():
            parameter.grad = self.gradients[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        text = read_text()
        self.text = text[: len(text) // self.ranks * self.ranks].view(self.ranks, -1)[self.rank]
        self.generator = torch.Generator().manual_seed(self.rank)

    def step(self) -> Step:
        starts = torch.randint(len(self.text) - LENGTH, (BATCH, 1), generator=self.generator)
        windows = self.text[starts + torch.arange(LENGTH + 1)]
        begin = time.perf_counter()
        self.gradients.zero_()
        loss = self.model.loss(windows)
        loss.backward()
        computed = time.perf_counter()
        unisono.barrier()  # only to tell waiting from communicating: a program needs none
        met = time.perf_counter()
        self.average(self.gradients)
        averaged = time.perf_counter()
        self.optimizer.step()
        compute_s = computed - begin + time.perf_counter() - averaged
        return Step(loss.item(), compute_s, met - computed, averaged - met)


_trainer = functools.cache(_Trainer)
"""Keeps a trainer in each rank from one call of `advance` to the next."""


def advance(engine: str, folder: str, steps: int) -> list[Step]:
    """Train `steps` more steps with this engine on the calling rank."""
    trainer = _trainer(engine, folder)
    return [trainer.step() for _ in range(steps)]


def fingerprint(engine: str, folder: str) -> str:
    """A hash of all bits of this rank's model."""
    bits = hashlib.sha256()
    for parameter in _trainer(engine, folder).model.parameters():
        bits.update(parameter.detach().numpy().tobytes())
    return bits.hexdigest()


def sample(engine: str, folder: str, start: str, count: int) -> str:
    """`start`, continued by `count` characters from the trained model."""
    text: str = _trainer(engine, folder).model.write(start, count)
    return text
