"""One call of any collective on this rank, with data of its own on every rank, checked against the oracle.

This runs on the ranks. What a rank passes depends on the case alone, so every rank knows what all others pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

import unisono
from unisono import testing as oracle
from unisono.schedule import ROOTED
from unisono.schedule.algorithms import CATALOGUE

COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "scatter", "gather", "all_gather", "reduce_scatter", "all_to_all",
)  # fmt: skip
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
LISTS = ("all_gather", "reduce_scatter", "all_to_all")
"""Collectives with a form for lists and one for whole tensors."""

OPS = ("sum", "avg", "product", "min", "max")
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8,
)  # fmt: skip
"""Dtypes that can be combined."""

OTHER_DTYPES = (torch.bool, torch.int8, torch.int16, torch.complex64, torch.complex128, torch.float8_e4m3fn)
"""Dtypes that can be moved only."""

GUARD = 77


@dataclass(frozen=True)
class Case:
    """A call. count: elements of a block. layout: of every tensor in it. alias: the input is the output's own block."""

    collective: str
    count: int
    dtype: torch.dtype = torch.float32
    op: str = "sum"
    root: int = 0
    algorithm: Any = None
    lists: bool = False
    shared: bool = False
    layout: str = "plain"
    alias: bool = False
    async_op: bool = False
    seed: int = 0


@lru_cache(maxsize=64)
def values(rank: int, count: int, dtype: torch.dtype, op: str, seed: int) -> torch.Tensor:
    """Small integers, different on every rank and in every place: all sums of them are exact in every dtype."""
    drawn = (torch.arange(count) * 7 + rank * 13 + seed * 5) % 31
    if op == "product":
        drawn = 1 + drawn % 2
    elif dtype.is_signed:
        drawn = drawn - 15
    return (drawn % 2 if dtype is torch.bool else drawn).to(dtype)


class Buffer:
    """A tensor of so many elements, alone or as a view of a larger one, whose other elements are guards."""

    def __init__(self, case: Case, count: int) -> None:
        many = {"plain": count, "offset": count + 8, "strided": 2 * count + 1, "transposed": count}[case.layout]
        make = unisono.init().empty if case.shared else torch.empty
        self.whole = make(many, dtype=case.dtype)
        self.whole.copy_(torch.full((many,), GUARD).to(case.dtype))
        self.tensor = self.whole
        self.guards = torch.ones(many, dtype=torch.bool)
        if case.layout == "offset":
            self.tensor = self.whole[5 : 5 + count]
            self.guards[5 : 5 + count] = False
        elif case.layout == "strided":
            self.tensor = self.whole[1::2]
            self.guards[1::2] = False
        else:
            self.guards[:] = False
            if case.layout == "transposed" and count % 2 == 0:
                self.tensor = self.whole.view(2, count // 2).t()

    def fill(self, flat: torch.Tensor) -> Buffer:
        self.tensor.copy_(flat.view(self.tensor.shape))
        return self

    def check(self, want: torch.Tensor, what: str) -> None:
        got = self.tensor.flatten()
        assert same(got, want), f"{what}: got {got[:8].tolist()} ... instead of {want[:8].tolist()} ..."
        rest = self.whole[self.guards]
        assert same(rest, torch.full_like(rest, GUARD)), f"{what}: elements around it have changed"


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.dtype is torch.float8_e4m3fn:
        x, y = x.view(torch.uint8), y.view(torch.uint8)
    return torch.equal(x, y)


@dataclass
class Pending:
    """A call that has been made, and what is to be checked when it is done."""

    case: Case
    work: Any
    checks: list[tuple[Buffer, torch.Tensor, str]]

    def finish(self) -> None:
        if self.work is not None:
            assert self.work.wait()
        for buffer, want, what in self.checks:
            buffer.check(want, f"{self.case}, {what}")


def call(case: Case) -> None:
    """Make the call, and check what this rank ends with."""
    start(case).finish()


def start(case: Case) -> Pending:
    """Make the call, maybe in the background."""
    group = unisono.init()
    p, me, name, n = group.size, group.rank, case.collective, case.count
    longer = n * p if name in ("scatter", "reduce_scatter", "all_to_all") else n
    inputs = [values(rank, longer, case.dtype, case.op if name in REDUCING else "", case.seed) for rank in range(p)]
    options: dict[str, Any] = {"async_op": case.async_op, "algorithm": case.algorithm}
    if name in ("all_reduce", "reduce", "broadcast"):
        buffer = Buffer(case, n).fill(inputs[me])
        arguments: list[Any] = [buffer.tensor]
        if name == "all_reduce":
            want = oracle.all_reduce(inputs, case.op)
            arguments += [case.op]
        elif name == "reduce":
            want = oracle.reduce(inputs, case.root, case.op)
            arguments += [case.root, case.op]
        else:
            want = oracle.broadcast(inputs, case.root)
            arguments += [case.root]
        return Pending(case, getattr(unisono, name)(*arguments, **options), [(buffer, want[me], "tensor")])
    if name == "scatter":
        return _scatter(case, inputs, options)
    if name == "gather":
        return _gather(case, inputs, options)
    return _blocks(case, inputs, options)


def _scatter(case: Case, inputs: list[torch.Tensor], options: dict[str, Any]) -> Pending:
    p, me = len(inputs), unisono.init().rank
    out = Buffer(case, case.count)
    want = oracle.scatter(inputs, case.root)
    blocks = [Buffer(case, case.count).fill(want[rank]) for rank in range(p)] if me == case.root else []
    if case.alias and blocks:
        out = blocks[me]
    given = [block.tensor for block in blocks] if blocks else None
    work = unisono.scatter(out.tensor, given, case.root, **options)
    return Pending(
        case, work, [(out, want[me], "tensor"), *((b, w, "list") for b, w in zip(blocks, want, strict=False))]
    )


def _gather(case: Case, inputs: list[torch.Tensor], options: dict[str, Any]) -> Pending:
    p, me = len(inputs), unisono.init().rank
    inp = Buffer(case, case.count).fill(inputs[me])
    blocks = [Buffer(case, case.count) for _ in range(p)] if me == case.root else []
    if case.alias and blocks:
        inp = blocks[me].fill(inputs[me])
    given = [block.tensor for block in blocks] if blocks else None
    work = unisono.gather(inp.tensor, given, case.root, **options)
    return Pending(
        case, work, [(inp, inputs[me], "tensor"), *((b, w, "list") for b, w in zip(blocks, inputs, strict=False))]
    )


def _blocks(case: Case, inputs: list[torch.Tensor], options: dict[str, Any]) -> Pending:
    """all_gather, reduce_scatter, all_to_all, for lists or whole tensors."""
    name, p, me, n = case.collective, len(inputs), unisono.init().rank, case.count
    if name == "all_gather":
        want = oracle.all_gather(inputs)
    elif name == "reduce_scatter":
        want = oracle.reduce_scatter(inputs, case.op)
        options["op"] = case.op
    else:
        want = oracle.all_to_all(inputs)
    parts = [1 if name == "all_gather" else p, 1 if name == "reduce_scatter" else p]  # blocks of input and output
    if case.lists:
        inp, out = ([Buffer(case, n) for _ in range(many)] for many in parts)
        own = slice(me, me + 1)
        if case.alias and name == "all_gather":
            inp = out[own]
        elif case.alias and name == "reduce_scatter":
            out = inp[own]
        for k, buffer in enumerate(inp):
            buffer.fill(inputs[me][k * n : (k + 1) * n])
        given = [b.tensor for b in inp] if parts[0] > 1 or name != "all_gather" else inp[0].tensor
        taken = [b.tensor for b in out] if parts[1] > 1 or name != "reduce_scatter" else out[0].tensor
        work = getattr(unisono, name)(taken, given, **options)
        checks = [(b, want[me][k * n : (k + 1) * n], "output") for k, b in enumerate(out)]
        if not case.alias:
            checks += [(b, inputs[me][k * n : (k + 1) * n], "input") for k, b in enumerate(inp)]
        return Pending(case, work, checks)
    whole_in, whole_out = (Buffer(case, n * many) for many in parts)
    whole_in.fill(inputs[me])
    given, taken = whole_in.tensor, whole_out.tensor
    if case.alias and name == "all_gather":
        given = taken.flatten()[me * n : (me + 1) * n]
        given.copy_(inputs[me])
    elif case.alias and name == "reduce_scatter":
        taken = given.flatten()[me * n : (me + 1) * n]
    work = getattr(unisono, f"{name}_single")(taken, given, **options)
    if case.alias and name == "reduce_scatter":
        whole = inputs[me].clone()
        whole[me * n : (me + 1) * n] = want[me]
        return Pending(case, work, [(whole_in, whole, "input and output")])
    return Pending(case, work, [(whole_out, want[me], "output"), (whole_in, inputs[me], "input")])


def algorithms(collective: str) -> list[str]:
    """The names in the catalogue that allow this group."""
    size = unisono.init().size
    return [a.name for a in CATALOGUE.values() if a.collective == collective and a.allows(size)]


def forms(collective: str) -> Iterator[dict[str, bool]]:
    """List or whole tensor, the input its own memory or the output's own block, as far as a collective has them."""
    for lists in (False, True) if collective in LISTS else (False,):
        yield {"lists": lists}
        if collective in ("scatter", "gather", "all_gather", "reduce_scatter"):
            yield {"lists": lists, "alias": True}


def roots(collective: str) -> list[int]:
    """The first, a middle and the last rank, where there is a root."""
    size = unisono.init().size
    return sorted({0, size // 2, size - 1}) if collective in ROOTED else [0]
