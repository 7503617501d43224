"""Times of single calls of torch.distributed, on our backend and on Gloo, in the same two ranks.

A turn is a batch of calls back to back, as a program makes them: its time over their number is the time of a call.
Before it all ranks make a few calls that do not count, since the first ones after a peer's turn find cold caches and
the peer's threads, and meet. The slowest rank's time counts. The contenders take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .groups import Groups

Times = dict[str, list[float]]
"""Contender -> seconds per call, one figure per turn."""

_Call = tuple[Callable[[], object], list[torch.Tensor]]
"""What to call, and the tensors that it writes on this rank."""

_TURN_S, _MOST = 0.02, 1000
"""About how long a turn takes, and how many calls it has at most."""
_UNTIMED = 2
"""Calls at the start of a turn that do not count."""


def _all_reduce(x: torch.Tensor, group: Any) -> _Call:
    return lambda: dist.all_reduce(x, group=group), [x]


def _all_reduce_async(x: torch.Tensor, group: Any) -> _Call:
    return lambda: dist.all_reduce(x, group=group, async_op=True).wait(), [x]


def _broadcast(x: torch.Tensor, group: Any) -> _Call:
    return lambda: dist.broadcast(x, 0, group), [x]


def _reduce(x: torch.Tensor, group: Any) -> _Call:
    return lambda: dist.reduce(x, 0, group=group), [x] if dist.get_rank() == 0 else []


def _all_gather_into_tensor(x: torch.Tensor, group: Any) -> _Call:
    mine, whole = _blocks(x)[0], torch.zeros_like(x)
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return lambda: call(whole, mine, group), [whole]


def _all_gather(x: torch.Tensor, group: Any) -> _Call:
    mine, *_ = parts = _blocks(x)
    outputs = [torch.zeros_like(part) for part in parts]
    return lambda: dist.all_gather(outputs, mine, group), outputs


def _gather(x: torch.Tensor, group: Any) -> _Call:
    mine, *_ = parts = _blocks(x)
    outputs = [torch.zeros_like(part) for part in parts] if dist.get_rank() == 0 else []
    return lambda: dist.gather(mine, outputs or None, 0, group), outputs


def _scatter(x: torch.Tensor, group: Any) -> _Call:
    parts = _blocks(x)
    output = torch.zeros_like(parts[0])
    return lambda: dist.scatter(output, parts if dist.get_rank() == 0 else None, 0, group), [output]


def _reduce_scatter_tensor(x: torch.Tensor, group: Any) -> _Call:
    output = torch.zeros_like(_blocks(x)[0])
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return lambda: call(output, x, group=group), [output]


def _reduce_scatter(x: torch.Tensor, group: Any) -> _Call:
    parts = _blocks(x)
    output = torch.zeros_like(parts[0])
    return lambda: dist.reduce_scatter(output, parts, group=group), [output]


def _all_to_all_single(x: torch.Tensor, group: Any) -> _Call:
    output = torch.zeros_like(x)
    return lambda: dist.all_to_all_single(output, x, group=group), [output]


def _all_to_all(x: torch.Tensor, group: Any) -> _Call:
    parts = _blocks(x)
    outputs = [torch.zeros_like(part) for part in parts]
    return lambda: dist.all_to_all(outputs, parts, group), outputs


def _send_recv(x: torch.Tensor, group: Any) -> _Call:
    output, me = torch.zeros_like(x), dist.get_rank()

    def there_and_back() -> None:
        for sender in range(2):
            if me == sender:
                dist.send(x, 1 - me, group)
            else:
                dist.recv(output, 1 - me, group)

    return there_and_back, [output]


def _isend_irecv(x: torch.Tensor, group: Any) -> _Call:
    output, peer = torch.zeros_like(x), 1 - dist.get_rank()

    def both_at_once() -> None:
        for work in [dist.irecv(output, peer, group), dist.isend(x, peer, group)]:
            if work is not None:
                work.wait()

    return both_at_once, [output]


def _barrier(x: torch.Tensor, group: Any) -> _Call:  # noqa: ARG001  it has none
    return lambda: dist.barrier(group), []


def _blocks(x: torch.Tensor) -> list[torch.Tensor]:
    return [part.clone() for part in x.chunk(dist.get_world_size())]


CALLS: dict[str, Callable[[torch.Tensor, Any], _Call]] = {
    "all_reduce": _all_reduce,
    "all_reduce, async_op": _all_reduce_async,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter": _reduce_scatter,
    "all_to_all_single": _all_to_all_single,
    "all_to_all": _all_to_all,
    "send and recv, there and back": _send_recv,
    "isend and irecv at once": _isend_irecv,
    "barrier": _barrier,
}
"""The calls by name. Each takes a rank's tensor, the larger one of its input and output, and a group of two ranks."""


def measure_barrier(folder: str) -> float:
    """Seconds of a barrier that is none of the contenders': the mode in which a virtual machine is."""
    return Groups.get(folder).meet.latency_s()


def measure_calls(folder: str, name: str, nbytes: int, turns: int) -> tuple[Times, bool]:
    """Seconds per call on this rank, and whether both contenders have written the same bits."""
    groups = Groups.get(folder)
    made = {}
    written = []
    for contender, group in groups.contenders.items():
        x = torch.arange(nbytes // 4, dtype=torch.float32) % 1000 + 10 * dist.get_rank()
        call, outputs = CALLS[name](x, group)
        call()
        written.append([output.clone() for output in outputs])
        x.zero_()  # sums of sums would grow
        made[contender] = call, _count(call, groups)
    same = all(torch.equal(a, b) for a, b in zip(*written, strict=True))
    times: Times = {contender: [] for contender in made}
    for _ in range(turns):
        for contender, (call, count) in made.items():
            for _ in range(_UNTIMED):
                call()
            groups.meet.barrier()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            times[contender].append((time.perf_counter() - begin) / count)
    return times, same


def _count(call: Callable[[], object], groups: Groups) -> int:
    """How many calls fill a turn: rank 0 says so."""
    groups.meet.barrier()
    begin = time.perf_counter()
    for _ in range(3):
        call()
    return groups.meet.share(max(3, min(_MOST, int(3 * _TURN_S / (time.perf_counter() - begin)))))


def slowest_rank(ranks: Sequence[Times]) -> Times:
    """A turn takes as long as its slowest rank."""
    return {who: [max(turn) for turn in zip(*(times[who] for times in ranks), strict=True)] for who in ranks[0]}
