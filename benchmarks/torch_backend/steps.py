"""Training steps: a small transformer, data parallel and sharded, and large gradients; on our backend and on Gloo."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

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


class Trainer:
    """A model that is trained together with other ranks, with its optimizer and this rank's data."""

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer, loss: Callable[[torch.Generator], Any]) -> None:
        self.model, self._optimizer, self._loss = model, optimizer, loss
        self._generator = torch.Generator().manual_seed(dist.get_rank())

    def step(self) -> float:
        self._optimizer.zero_grad()
        loss = self._loss(self._generator)
        loss.backward()
        self._optimizer.step()
        return float(loss.item())


def make_trainer(kind: str, group: Any, wire: str = "") -> Trainer:
    """What trains a model of this kind on a group; None: without communication.

    wire: of gradients of DistributedDataParallel, which are then rounded between hosts; see `unisono.Compression`.
    """
    trainer = _large(group) if kind == LARGE else _transforming(kind, group)
    if wire:
        trainer.model.register_comm_hook(unisono.Compression(wire, group), unisono.compress_hook)
    return trainer


def _transforming(kind: str, group: Any) -> Trainer:
    """A transformer that guesses the next word, wrapped for one group. About 860,000 parameters."""
    torch.manual_seed(0)  # the same start on all ranks
    embed = nn.Embedding(_WORDS, _WIDTH)
    layers = [nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True) for _ in range(_LAYERS)]
    model: Any = nn.Sequential(embed, *layers, nn.Linear(_WIDTH, _WORDS))
    if group is not None and kind == "fully_shard":
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif group is not None:
        model = nn.parallel.DistributedDataParallel(model, process_group=group)

    def loss(generator: torch.Generator) -> Any:
        words = torch.randint(_WORDS, (_BATCH, _LENGTH + 1), generator=generator)
        return nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    return Trainer(model, torch.optim.AdamW(model.parameters(), lr=0.001), loss)


def _large(group: Any) -> Trainer:
    """Linear layers whose gradients take long to send. Without a group: on that of all ranks, with an empty hook."""
    torch.manual_seed(0)
    layers = [nn.Linear(_LARGE_WIDTH, _LARGE_WIDTH, bias=False) for _ in range(_LARGE_LAYERS)]
    model: Any = nn.parallel.DistributedDataParallel(
        nn.Sequential(*layers), process_group=group, bucket_cap_mb=_BUCKET_MIB, gradient_as_bucket_view=True
    )
    if group is None:
        model.register_comm_hook(None, lambda _, bucket: _done(bucket.buffer()))
    return Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda generator: model(torch.randn(_LARGE_BATCH, _LARGE_WIDTH, generator=generator)).square().mean(),
    )


def _done(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def measure_steps(groups: Groups, kind: str, turns: int) -> tuple[Times, dict[str, list[float]]]:
    """Train on this rank, on our backend, Gloo and alone; see `train_in_turns`."""
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
