"""Times of single calls of torch.distributed, on our backend and on Gloo, in the same two ranks, in turns."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import unisono

from ..reports import GLOO, OURS
from ..turns import Rendezvous, Times, take_turns

CALLS = (
    "all_reduce", "all_reduce, async_op", "broadcast", "reduce", "all_gather_into_tensor", "all_gather", "gather",
    "scatter", "reduce_scatter_tensor", "reduce_scatter", "all_to_all_single", "all_to_all",
    "send and recv, there and back", "isend and irecv at once", "barrier",
)  # fmt: skip

_TURN_S = 0.02


class Groups:
    """Two process groups of torch.distributed over the same ranks. meet: a barrier that uses neither.

    meeting: where torch's ranks find each other, if not in the folder.
    """

    def __init__(self, folder: str, meeting: str = "") -> None:
        rank, ranks = unisono.get_rank(), unisono.get_world_size()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        patience = datetime.timedelta(seconds=120)
        meeting = meeting or f"file://{folder}/torch"
        dist.init_process_group("unisono", meeting, timeout=patience, rank=rank, world_size=ranks)
        self.contenders: dict[str, Any] = {OURS: dist.group.WORLD, GLOO: dist.new_group(backend="gloo")}
        self.meet = Rendezvous(Path(folder, "meet"), rank, ranks)


@contextlib.contextmanager
def two_backends(ranks: int, hosts: str | None = None) -> Iterator[Callable[..., list[Any]]]:
    """A world whose ranks have Groups. Yields what calls function(groups, *args) on each of them."""
    with tempfile.TemporaryDirectory() as folder, unisono.world(ranks, timeout_s=600, hosts=hosts) as world:
        yield lambda function, *args: world.run(_with_groups, folder, function, *args)


def _with_groups(folder: str, function: Callable[..., Any], *args: Any) -> Any:
    return function(_groups(folder), *args)


_groups = functools.cache(Groups)


def make_call(name: str, x: torch.Tensor, group: Any) -> tuple[Callable[[], object], list[torch.Tensor]]:
    """What makes one of CALLS, and the tensors that it writes on this rank.

    x: this rank's tensor, the larger one of its input and output. group: of two ranks.
    """
    me, (mine, other) = dist.get_rank(), (part.clone() for part in x.chunk(2))
    parts, whole, part = [mine, other], torch.zeros_like(x), torch.zeros_like(mine)
    both = list(torch.zeros_like(x).chunk(2))
    # The old names are those of torch 2.11; torch 2.13 warns of them.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def there_and_back() -> None:
        for sender in range(2):
            if me == sender:
                dist.send(x, 1 - me, group)
            else:
                dist.recv(whole, 1 - me, group)

    def both_at_once() -> None:
        for work in [dist.irecv(whole, 1 - me, group), dist.isend(x, 1 - me, group)]:
            if work is not None:
                work.wait()

    made: dict[str, tuple[Callable[[], object], list[torch.Tensor]]] = {
        "all_reduce": (lambda: dist.all_reduce(x, group=group), [x]),
        "all_reduce, async_op": (lambda: dist.all_reduce(x, group=group, async_op=True).wait(), [x]),
        "broadcast": (lambda: dist.broadcast(x, 0, group), [x]),
        "reduce": (lambda: dist.reduce(x, 0, group=group), [] if me else [x]),
        "all_gather_into_tensor": (lambda: all_gather(whole, mine, group), [whole]),
        "all_gather": (lambda: dist.all_gather(both, mine, group), both),
        "gather": (lambda: dist.gather(mine, None if me else both, 0, group), [] if me else both),
        "scatter": (lambda: dist.scatter(part, None if me else parts, 0, group), [part]),
        "reduce_scatter_tensor": (lambda: reduce_scatter(part, x, group=group), [part]),
        "reduce_scatter": (lambda: dist.reduce_scatter(part, parts, group=group), [part]),
        "all_to_all_single": (lambda: dist.all_to_all_single(whole, x, group=group), [whole]),
        "all_to_all": (lambda: dist.all_to_all(both, parts, group), both),
        "send and recv, there and back": (there_and_back, [whole]),
        "isend and irecv at once": (both_at_once, [whole]),
        "barrier": (lambda: dist.barrier(group), []),
    }
    return made[name]


def measure_barrier(groups: Groups) -> float:
    """Seconds of a barrier that is none of the contenders': the mode in which a virtual machine is."""
    return groups.meet.latency_s()


def measure_calls(groups: Groups, name: str, nbytes: int, turns: int) -> tuple[Times, bool]:
    """Seconds per call on this rank, and whether both contenders have written the same bits."""
    calls, written = {}, []
    for contender, group in groups.contenders.items():
        x = torch.arange(nbytes // 4, dtype=torch.float32) % 1000 + 10 * dist.get_rank()
        calls[contender], outputs = make_call(name, x, group)
        calls[contender]()
        written.append([output.clone() for output in outputs])
        x.zero_()  # sums of sums would grow
    same = all(torch.equal(a, b) for a, b in zip(*written, strict=True))
    return take_turns(calls, groups.meet, turns, _TURN_S), same
