"""What each rank does to compare calls over hosts: make them by each engine in turn, time them, compare results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.distributed as torch_dist
from torch._C import _distributed_c10d

import unisono

from ..shared.beside_gloo import ENGINES
from ..shared.progress_bar import step_done

dist: Any = torch_dist
Gloo: Any = _distributed_c10d.ProcessGroupGloo
"""Torch's own, whatever answers to its name in `torch.distributed`. What torch exports of both is not in its stubs."""

BLOCKED = ("all_gather", "reduce_scatter", "all_to_all")
"""Collectives whose vectors consist of a block for each rank."""

_MOST, _FEWEST = 40, 5
_PERIOD = 13
"""Numbers repeat after so many places, so that misplaced blocks are noticed; their sums are exact."""

HostCall = tuple[Callable[[], object], torch.Tensor]
"""What to call, and the tensor that it writes on this rank."""


class HostTurns(NamedTuple):
    """Seconds of each call on this rank, by engine, and how many elements of their results differ from ours."""

    times: dict[str, list[float]]
    wrong: int


def host_cells(sizes: Sequence[int]) -> list[tuple[str, int]]:
    """What is measured: all_reduce of all sizes, and the other calls of the last one."""
    return [*(("all_reduce", nbytes) for nbytes in sizes), *((name, sizes[-1]) for name in ("broadcast", *BLOCKED))]


@cache
def flat_gloo(addresses: tuple[str, ...]) -> Any:
    """A group of all ranks over Gloo alone, at the addresses of their hosts. The first call makes it."""
    group = unisono.init()
    limit, port = timedelta(seconds=60), torch.zeros(1, dtype=torch.int64)
    stores = [dist.TCPStore(addresses[0], 0, group.size, True, limit, False)] if group.rank == 0 else []
    if stores:
        port[0] = stores[0].port
    unisono.broadcast(port, 0)
    store = stores[0] if stores else dist.TCPStore(addresses[0], int(port), group.size, False, limit)
    options = Gloo._Options()  # noqa: SLF001  torch has no public way
    own = addresses[group.hosts.host_of(group.rank)]
    options._devices = [Gloo.create_device(hostname=own)]  # noqa: SLF001
    options._timeout = limit  # noqa: SLF001
    return Gloo(dist.PrefixStore("flat", store), group.rank, group.size, options)


def measure_over_hosts(
    addresses: tuple[str, ...],
    cells: Sequence[tuple[str, int]],
    seconds: float,
    more: Mapping[str, Callable[[str, int], HostCall]] | None = None,
    steps: str = "",
) -> list[HostTurns]:
    """For each collective and size this rank's times. seconds: about as long as Gloo may take for all calls of one.

    more: further engines, each a function that makes a call of a collective and a size. steps: see `step_done`; each
    collective and size is one.
    """
    ours, flat = ENGINES
    engines: dict[str, Callable[[str, int], HostCall]]
    engines = {ours: _by_us, flat: partial(_by_gloo, flat_gloo(addresses)), **(more or {})}
    found = []
    for name, nbytes in cells:
        made = {engine: make(name, nbytes) for engine, make in engines.items()}
        for call, _ in made.values():
            call()
        wrong = sum(int((made[ours][1] != result).sum()) for _, result in made.values())
        for _, result in made.values():
            result.zero_()  # sums of sums would grow
        unisono.barrier()
        began = time.perf_counter()
        made[flat][0]()
        once = torch.tensor([time.perf_counter() - began])
        unisono.all_reduce(once, "max")
        times: dict[str, list[float]] = {engine: [] for engine in engines}
        for _ in range(max(_FEWEST, min(_MOST, int(seconds / once.item())))):
            for engine, (call, _) in made.items():
                unisono.barrier()
                began = time.perf_counter()
                call()
                times[engine].append(time.perf_counter() - began)
        found.append(HostTurns(times, wrong))
        if unisono.get_rank() == 0:
            step_done(steps)
    return found


def block_and_whole(name: str, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A block of this rank's, and a whole vector; they are what goes in, or room for what comes out."""
    rank, size = unisono.get_rank(), unisono.get_world_size()
    count = max(1, nbytes // 4)
    count = max(1, count // size) * size if name in BLOCKED else count
    whole = torch.arange(count, dtype=torch.float32).remainder_(_PERIOD) + rank
    return whole[: count // size].clone(), whole


def _by_us(name: str, nbytes: int) -> HostCall:
    part, whole = block_and_whole(name, nbytes)
    match name:
        case "all_reduce":
            return lambda: unisono.all_reduce(whole), whole
        case "broadcast":
            return lambda: unisono.broadcast(whole, 0), whole
        case "all_gather":
            return lambda: unisono.all_gather_single(whole, part), whole
        case "reduce_scatter":
            return lambda: unisono.reduce_scatter_single(part, whole), part
    other = torch.empty_like(whole)
    return lambda: unisono.all_to_all_single(other, whole), other


def _by_gloo(gloo: Any, name: str, nbytes: int) -> HostCall:
    part, whole = block_and_whole(name, nbytes)
    match name:
        case "all_reduce":
            return lambda: gloo.allreduce([whole], dist.AllreduceOptions()).wait(), whole
        case "broadcast":
            return lambda: gloo.broadcast([whole], dist.BroadcastOptions()).wait(), whole
        case "all_gather":
            return lambda: gloo._allgather_base(whole, part).wait(), whole  # noqa: SLF001
        case "reduce_scatter":
            return lambda: gloo._reduce_scatter_base(part, whole).wait(), part  # noqa: SLF001
    other = torch.empty_like(whole)
    splits: list[int] = []
    return lambda: gloo.alltoall_base(other, whole, splits, splits, dist.AllToAllOptions()).wait(), other
