"""Mailboxes of ranks on several hosts, all in one process, over a carrier whose messages the test moves."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from tests.support.in_process_carrier import InProcessCarrier, Wires
from unisono.base.config import Config
from unisono.engine.mailbox import CarrierStreams, FarPeers, Mailbox
from unisono.engine.memory.arena import Arena
from unisono.engine.memory.heap import Heap
from unisono.schedule import Hosts


class PromptCarrier(InProcessCarrier):
    """Moves all that there is whenever it is called."""

    def progress(self) -> None:
        while self._wires.move():
            pass


class FarMailboxes:
    """boxes: a mailbox for each rank of these hosts. wires: to move messages by hand, if they are not `prompt`."""

    def __init__(self, hosts: Hosts, *, prompt: bool, seed: int = 0) -> None:
        ranks = range(hosts.ranks)
        self.arenas = [Arena.create(hosts.ranks, Config(heap_bytes=1 << 20)) for _ in hosts.members]
        self.wires = Wires(Random(seed))
        kind = PromptCarrier if prompt else InProcessCarrier
        self.traffic = [CarrierStreams(kind(self.wires, rank)) for rank in ranks]
        self.boxes = [self._make(hosts, rank) for rank in ranks]

    def _make(self, hosts: Hosts, rank: int) -> Mailbox:
        arena = self.arenas[hosts.host_of(rank)]
        far = frozenset(range(hosts.ranks)) - set(hosts.beside(rank))
        peers = FarPeers(rank, far, range(hosts.ranks), 77, self.traffic[rank]) if far else None
        return Mailbox(arena, Heap(arena, rank), rank, 0, (), peers)

    def close(self) -> None:
        for arena in self.arenas:
            arena.close()


@contextmanager
def far_mailboxes(hosts: str, *, prompt: bool = True, seed: int = 0) -> Iterator[FarMailboxes]:
    """Mailboxes on hosts as `Hosts.parse` reads them."""
    made = FarMailboxes(Hosts.parse(hosts), prompt=prompt, seed=seed)
    try:
        yield made
    finally:
        made.close()
