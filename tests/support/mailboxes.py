"""Mailboxes of several ranks in one process, on one host or over a carrier: tests make every interleaving by hand."""

from contextlib import AbstractContextManager
from random import Random
from typing import Any

import torch

from tests.support.in_process_carrier import InProcessCarrier, Wires
from unisono.base.config import Config
from unisono.engine.mailbox import CarrierStreams, FarPeers, Mailbox, Place, Receive, Send
from unisono.engine.memory.arena import Arena
from unisono.engine.memory.heap import Heap
from unisono.engine.tensors import DTYPE_CODES
from unisono.schedule import Hosts

RING = 4096
Boxes = list[Mailbox]


class Mailboxes(AbstractContextManager["Mailboxes"]):
    """boxes: a mailbox for each rank of these hosts. wires: to move messages by hand, if carriers are not `prompt`.

    Ranks take messages from other hosts after `listen_to_all`.
    """

    def __init__(self, shape: str, *, prompt: bool = False, seed: int = 0) -> None:
        hosts = Hosts.parse(shape)
        self.arenas = [Arena.create(hosts.ranks, Config(heap_bytes=1 << 20)) for _ in hosts.members]
        self.wires = Wires(Random(seed))
        kind: Any = PromptCarrier if prompt else InProcessCarrier
        self.traffic = [CarrierStreams(kind(self.wires, rank)) for rank in range(hosts.ranks)]
        self.boxes = [self._make(hosts, rank) for rank in range(hosts.ranks)]

    def __exit__(self, *_: object) -> None:
        for arena in self.arenas:
            arena.close()

    def _make(self, hosts: Hosts, rank: int) -> Mailbox:
        arena = self.arenas[hosts.host_of(rank)]
        far = frozenset(range(hosts.ranks)) - set(hosts.beside(rank))
        peers = FarPeers(rank, far, range(hosts.ranks), 77, self.traffic[rank]) if far else None
        return Mailbox(arena, Heap(arena, rank), rank, 0, (), peers)

    def run(self) -> None:
        """Let all move all that there is."""
        while sum(box.progress() for box in self.boxes) or self.wires.move():
            pass


class PromptCarrier(InProcessCarrier):
    """Moves all that there is whenever it is called."""

    def progress(self) -> None:
        while self._wires.move():
            pass


def values(count: int, seed: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return (torch.arange(count) * 7 + seed * 1_000_003).to(dtype)


def place(tensor: torch.Tensor) -> Place:
    return tensor.data_ptr(), DTYPE_CODES[tensor.dtype], tensor.nbytes


def send(box: Mailbox, tensor: torch.Tensor, to: int, tag: int = 0) -> Send:
    request = Send(tensor, to, tag)
    box.submit(request)
    return request


def receive(box: Mailbox, tensor: torch.Tensor | None, source: int, tag: int = 0) -> Receive:
    request = Receive(tensor, source, tag)
    box.submit(request)
    return request


def run(*boxes: Mailbox) -> None:
    """Let them move all that there is."""
    while sum(box.progress() for box in boxes):
        pass
