"""Training steps: a small transformer, data parallel and sharded, and large gradients; on our backend and on Gloo."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

import unisono

from ..turns import Rendezvous, Times
from .calls import Groups

LARGE = "DistributedDataParallel, 16 MiB of gradients"
KINDS = ("DistributedDataParallel", "fully_shard", LARGE)
ALONE = "without communication"
"""The model as it is, on each rank for itself; for LARGE, wrapped as for training together, with a hook that does
nothing: what DistributedDataParallel costs by itself is part of all figures."""

_WIDTH, _LAYERS, _BATCH, _LENGTH, _WORDS = 128, 4, 4, 32, 256
_LARGE_WIDTH, _LARGE_LAYERS, _LARGE_BATCH, _BUCKET_MIB = 512, 16, 64, 4


class _Transformer(nn.Module):
    """Guesses the next word: an embedding, four layers, a linear layer. About 860,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # the same start for everybody
        self.embed = nn.Embedding(_WORDS, _WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True) for _ in range(_LAYERS)
        )
        self.guess = nn.Linear(_WIDTH, _WORDS)

    def forward(self, words: torch.Tensor) -> Any:
        """words: (batch, length) int64. Returns the logits of each next word: (batch, length, 256)."""
        states = self.embed(words)
        for layer in self.layers:
            states = layer(states)
        return self.guess(states)


class Trainer(Protocol):
    """A model that is trained together with other ranks."""

    def step(self) -> float:
        """One step; its loss."""


class _Transforming:
    """The transformer, wrapped for one group, with its optimizer and this rank's data."""

    def __init__(self, kind: str, group: Any, wire: str) -> None:
        model: Any = _Transformer()
        if group is not None and kind == "fully_shard":
            from torch.distributed.device_mesh import DeviceMesh
            from torch.distributed.fsdp import fully_shard

            mesh = DeviceMesh.from_group(group, "cpu")
            for layer in model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        elif group is not None:
            model = _compressed(nn.parallel.DistributedDataParallel(model, process_group=group), group, wire)
        self._model, self._optimizer = model, torch.optim.AdamW(model.parameters(), lr=0.001)
        self._generator = torch.Generator().manual_seed(dist.get_rank())

    def step(self) -> float:
        """One step; its loss."""
        words = torch.randint(_WORDS, (_BATCH, _LENGTH + 1), generator=self._generator)
        self._optimizer.zero_grad()
        logits = self._model(words[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.item()


class _Large:
    """Linear layers whose gradients take long to send. Without a group: on that of all ranks, with an empty hook."""

    def __init__(self, group: Any, wire: str) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(_LARGE_WIDTH, _LARGE_WIDTH, bias=False) for _ in range(_LARGE_LAYERS)]
        self._model: Any = nn.parallel.DistributedDataParallel(
            nn.Sequential(*layers), process_group=group, bucket_cap_mb=_BUCKET_MIB, gradient_as_bucket_view=True
        )
        if group is None:
            self._model.register_comm_hook(None, lambda _, bucket: _done(bucket.buffer()))
        _compressed(self._model, group, wire)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)
        self._generator = torch.Generator().manual_seed(dist.get_rank())

    def step(self) -> float:
        """One step; its loss."""
        self._optimizer.zero_grad()
        loss = self._model(torch.randn(_LARGE_BATCH, _LARGE_WIDTH, generator=self._generator)).square().mean()
        loss.backward()
        self._optimizer.step()
        return float(loss.item())


def _done(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def _compressed(model: Any, group: Any, wire: str) -> Any:
    """The model of DistributedDataParallel, with gradients that are rounded between hosts, unless wire is ""."""
    if wire:
        model.register_comm_hook(unisono.Compression(wire, group), unisono.compress_hook)
    return model


def make_trainer(kind: str, group: Any, wire: str = "") -> Trainer:
    """What trains a model of this kind on a group; None: without communication. wire: see `unisono.Compression`."""
    return _Large(group, wire) if kind == LARGE else _Transforming(kind, group, wire)


def measure_steps(folder: str, kind: str, turns: int) -> tuple[Times, dict[str, list[float]]]:
    """Train on this rank, on our backend, Gloo and alone; see `train_in_turns`."""
    groups = Groups.get(folder)
    contenders = {**groups.contenders, ALONE: None}
    trainers = {name: make_trainer(kind, group) for name, group in contenders.items()}
    return train_in_turns(trainers, groups.meet, turns)


def train_in_turns(
    trainers: Mapping[str, Trainer], meet: Rendezvous, turns: int
) -> tuple[Times, dict[str, list[float]]]:
    """Train on this rank, each contender its own copy, in turns: seconds per step, and the losses of all steps."""
    times: Times = {name: [] for name in trainers}
    losses: dict[str, list[float]] = {name: [] for name in trainers}
    for turn in range(turns + 2):
        for name, trainer in trainers.items():
            meet.barrier()
            begin = time.perf_counter()
            losses[name].append(trainer.step())
            if turn >= 2:  # the first ones make buffers
                times[name].append(time.perf_counter() - begin)
    return times, losses
