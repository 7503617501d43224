"""Who takes part: our backend, Gloo, and Gloo as torchft wraps it. The calls of each, and how it goes on."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # not in torch's __all__

from unisono.integrations.torch import register

from ..reports import GLOO, OURS

DETAIL = "Gloo, DETAIL"
"""Gloo, where torch compares each call of all ranks before it is made."""

TORCHFT = "torchft"
"""Its ProcessGroupGloo, which is reconfigured through a store, without its manager and lighthouse."""


class Contender:
    """`dist` with one of its backends. port: of a store that no rank holds, so that none takes it along."""

    def __init__(self, backend: str, rank: int, size: int, port: int, limit_s: float) -> None:
        self.backend, self.rank, self.size, self.port = backend, rank, size, port
        self.limit = timedelta(seconds=limit_s)
        self.start("first", rank, size)

    def start(self, prefix: str, rank: int, size: int) -> None:
        """Make a group of ranks that meet under this prefix of the store."""
        store = PrefixStore(prefix, TCPStore("127.0.0.1", self.port, None, False, self.limit))
        dist.init_process_group(self.backend, store=store, rank=rank, world_size=size, timeout=self.limit)

    def go_on(self, left: Sequence[int]) -> None:
        """Make a group of these ranks; each of them calls this."""
        dist.destroy_process_group()
        self.start("again", left.index(self.rank), len(left))

    def all_reduce(self, tensor: torch.Tensor, *, refused: bool = False) -> None:
        """A sum. refused: an operation that floats do not have."""
        dist.all_reduce(tensor, dist.ReduceOp.BAND if refused else dist.ReduceOp.SUM)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """From src."""
        dist.broadcast(tensor, src)

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        """To dst."""
        dist.send(tensor, dst)

    def recv(self, tensor: torch.Tensor, src: int) -> None:
        """From src."""
        dist.recv(tensor, src)

    def barrier(self) -> None:
        """All ranks."""
        dist.barrier()


class _Ours(Contender):
    def start(self, prefix: str, rank: int, size: int) -> None:
        register()  # torch does it by itself where the package is installed
        super().start(prefix, rank, size)

    def go_on(self, left: Sequence[int]) -> None:
        if len(left) < self.size:
            dist.shrink_group([rank for rank in range(self.size) if rank not in left])
        else:
            super().go_on(left)


class _GlooDetail(Contender):
    def start(self, prefix: str, rank: int, size: int) -> None:
        c10d.set_debug_level(c10d.DebugLevel.DETAIL)
        super().start(prefix, rank, size)


class _TorchFt(Contender):
    """A process group of torchft, which the functions of `dist` do not know."""

    def start(self, prefix: str, rank: int, size: int) -> None:
        torchft: Any = importlib.import_module("torchft.process_group")
        if prefix == "first":
            self.group = torchft.ProcessGroupGloo(self.limit)
        address = f"127.0.0.1:{self.port}/{prefix}"
        if hasattr(torchft, "reconfigure_with_store"):
            torchft.reconfigure_with_store(self.group, address, rank, size, self.limit)
        else:  # torchft 0.2
            self.group.configure(address, str(self.rank), rank, size)

    def go_on(self, left: Sequence[int]) -> None:
        self.start("again", left.index(self.rank), len(left))

    def all_reduce(self, tensor: torch.Tensor, *, refused: bool = False) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.BAND if refused else dist.ReduceOp.SUM  # type: ignore[assignment]
        self.group.allreduce([tensor], options).wait()

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = src
        self.group.broadcast([tensor], options).wait()

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        self.group.send([tensor], dst, 0).wait()

    def recv(self, tensor: torch.Tensor, src: int) -> None:
        self.group.recv([tensor], src, 0).wait()

    def barrier(self) -> None:
        self.group.barrier(dist.BarrierOptions()).wait()


_KINDS: dict[str, tuple[Callable[..., Contender], str]] = {
    OURS: (_Ours, "unisono"), GLOO: (Contender, "gloo"), DETAIL: (_GlooDetail, "gloo"), TORCHFT: (_TorchFt, "gloo"),
}  # fmt: skip


def contenders() -> list[str]:
    """Those that are installed."""
    return [name for name in _KINDS if name != TORCHFT or importlib.util.find_spec("torchft")]


def enter(name: str, rank: int, size: int, port: int, limit_s: float) -> Contender:
    """Take part as this rank."""
    kind, backend = _KINDS[name]
    return kind(backend, rank, size, port, limit_s)
