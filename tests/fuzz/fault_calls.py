"""The operations of a scene on one rank: what each rank gives, what must come out, and what must not change."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

import unisono
from tests.fuzz.fault_scene import Call
from tests.support import oracle

_BLOCKS = ("reduce_scatter", "all_to_all")  # what has a block for each rank as its input
_IN_PLACE = ("all_reduce", "broadcast", "reduce", "scan")


class Prepared(NamedTuple):
    """A call that is about to be made. mine: the rank's input. make: makes it, and returns what has come out."""

    mine: torch.Tensor
    in_place: bool
    make: Callable[[], torch.Tensor]


def given(call: Call, number: int, ranks: Sequence[int]) -> list[torch.Tensor]:
    """The inputs of these ranks of the world; every element is another one."""
    count = call.count * (len(ranks) if call.name in _BLOCKS else 1)
    return [torch.arange(count) + (rank + 1) * 10_000_019 + number * 1009 for rank in ranks]


def wanted(call: Call, number: int, ranks: Sequence[int], me: int) -> torch.Tensor:
    """What must come out on one of these ranks of the world, number `me` of the group."""
    inputs, root, size = given(call, number, ranks), number % len(ranks), len(ranks)
    if call.name == "barrier":
        return torch.zeros(0, dtype=torch.int64)
    if call.name == "ring":
        return inputs[(me - 1) % size]
    if call.name == "chain":
        return inputs[max(me - 1, 0)]
    function: Any = getattr(oracle, call.name)
    out = function(inputs, root) if call.name in ("broadcast", "reduce", "gather") else function(inputs)
    return torch.zeros(0, dtype=torch.int64) if out[me] is None else out[me]


def prepare(call: Call, number: int, group: unisono.Group) -> Prepared:
    """The call with its tensors."""
    empty = group.empty if call.shared else torch.empty
    source = given(call, number, group.world_ranks)[group.rank]
    mine = empty(len(source), dtype=torch.int64).copy_(source)
    blocks = group.size if call.name in ("all_gather", "all_to_all", "gather") else 1
    out = empty(call.count * blocks, dtype=torch.int64).fill_(-1)

    def make() -> torch.Tensor:
        work, came = _begin(call, number, group, mine, out)
        if work is not None:
            work.wait()
        return came

    return Prepared(mine, call.name in _IN_PLACE, make)


def _begin(
    call: Call, number: int, group: unisono.Group, mine: torch.Tensor, out: torch.Tensor
) -> tuple[Any, torch.Tensor]:
    """Begin the call: what is to be waited for, and where the outcome will be."""
    size, me, root = group.size, group.rank, number % group.size
    more: Any = {"group": group, "async_op": call.background}
    match call.name:
        case "all_reduce" | "scan":
            return getattr(unisono, call.name)(mine, "sum", **more), mine
        case "broadcast":
            return unisono.broadcast(mine, root, **more), mine
        case "reduce":
            return unisono.reduce(mine, root, "sum", **more), mine
        case "all_gather" | "all_to_all" | "reduce_scatter":
            return getattr(unisono, f"{call.name}_single")(out, mine, **more), out
        case "gather":
            work = unisono.gather(mine, list(out.chunk(size)) if me == root else None, root, **more)
            return work, out if me == root else out[:0]
        case "barrier":
            return unisono.barrier(**more), out[:0]
        case "ring":
            unisono.sendrecv(mine, (me + 1) % size, out, (me - 1) % size, group)
        case "chain":
            if me > 0:
                unisono.recv(out, me - 1, group)
            if me < size - 1:
                unisono.send(mine, me + 1, group)
            if me == 0:
                out.copy_(mine)
    return None, out
