"""What unisono and Gloo do with every call, dtype and op on three ranks: `python -m benchmarks.supported_calls`.

Outcomes are tables: rows are calls and ops, columns dtypes; what has equal outcomes is written once. docs/calls.md
shows them. An error in a call of a library is an outcome; any other is a bug of this file. There are three ranks, as
an exscan of two combines nothing.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated, Any, NamedTuple

import torch
import torch.distributed
import typer

import unisono
from unisono.base.errors import PeerError, RankFailed, WaitTimeout
from unisono.engine.reducers import DTYPES
from unisono.tools.cli.shared.timed_calls import start_gloo

from .expected import (
    FACTORS,
    OPS,
    RANKS,
    any_bytes,
    combined,
    copied,
    has,
    is_number,
    same,
    signed,
    tensor_of,
    zeros,
)
from .runs import GLOO, OURS, Output, Table, begin, hand_in

_DIST: Any = torch.distributed
_BLOCK = 2
_GLOO_S = 2.0
"""The outcome of a call that takes longer is "hangs". Gloo would wait for 30 minutes."""

COMBINING = ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan")
MOVING = ("broadcast", "scatter", "gather", "all_gather", "all_to_all")
ALL_DTYPES = (*DTYPES, "complex32", "float8_e8m0fnu", "float4_e2m1fn_x2", "int4")
"""Those that can be combined, and some that can be moved only."""
_TOTAL = 3 * torch.arange(6.0) + 30
"""The sum of what three ranks pass: 0 to 5, 10 to 15, 20 to 25."""
_LOST = ("aborts", "hangs")
"""Outcomes after which the ranks cannot be used any more."""


class Try(NamedTuple):
    """A call with a dtype and an op (of a call that only moves, none), or one of _SITUATIONS."""

    call: str
    dtype: str = ""
    op: str = ""


class _NoResult(Exception):
    """A call has no result. Its text: "raises", "hangs", or what the library lacks, such as "no op"."""


class _Library:
    """A library's calls on this rank. name: OURS or GLOO."""

    def __init__(self, name: str, folder: str) -> None:
        self._name, self.rank, self._library = name, unisono.get_rank(), unisono if name == OURS else _DIST
        if name == GLOO:
            start_gloo(folder, _GLOO_S)

    def call(self, call: str, x: torch.Tensor, y: torch.Tensor | None, op: str, root: int) -> None:
        """In place with x, or from x to y."""
        name = {one: f"{one}_single" for one in ("all_gather", "reduce_scatter", "all_to_all")}.get(call, call)
        if not hasattr(self._library, name):
            raise _NoResult("no call")
        passed: list[Any] = [x] if y is None else [y, x]
        if call == "scatter":
            passed = [y, list(x.chunk(RANKS)) if self.rank == root else None]
        elif call == "gather":
            passed = [x, list(y.chunk(RANKS)) if y is not None and self.rank == root else None]
        passed += [root] * (call in ("broadcast", "reduce", "scatter", "gather"))
        passed += [self._op(op)] if call in COMBINING else []
        getattr(self._library, name)(*passed)

    def _op(self, op: str) -> Any:
        ours, factor = self._name == OURS, FACTORS[self.rank]
        if op == "custom":
            if not ours:
                raise _NoResult("no op")
            return unisono.make_op(OPS["custom"])
        if op == "premul_sum":
            return unisono.premul_sum(factor) if ours else _DIST._make_nccl_premul_sum(factor)  # noqa: SLF001
        return getattr(self._library.ReduceOp, op.upper())

    def gather_blocks(self, blocks: list[torch.Tensor] | None, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """An all_gather of blocks of several sizes; None where they are not known."""
        return self._library.all_gather(blocks, x) or blocks or []

    def word(self, error: Exception) -> str:
        return "hangs" if isinstance(error, WaitTimeout) or "imed out" in str(error) else "raises"


class _Rank:
    """Tries of one rank."""

    def __init__(self, library: _Library) -> None:
        self.library, self.rank = library, library.rank

    def outcome(self, one: Try) -> str:
        """Returns "right", "wrong", "undefined", or the word of a _NoResult."""
        try:
            if one.call in _SITUATIONS:
                right: bool | None = _SITUATIONS[one.call](self)
            else:
                right = self._combines(one) if one.call in COMBINING else self._moves(one)
        except _NoResult as instead:
            return str(instead)
        return "undefined" if right is None else "right" if right else "wrong"

    def guarded(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except _NoResult:
            raise
        except Exception as error:
            raise _NoResult(self.library.word(error)) from error

    def perform(
        self, call: str, x: torch.Tensor, y: torch.Tensor | None = None, op: str = "sum", root: int = 0
    ) -> None:
        self.guarded(self.library.call, call, x, y, op, root)

    def _combines(self, one: Try) -> bool | None:
        """Is the combination right? None where no result is defined."""
        kind, rank = getattr(torch, one.dtype), self.rank
        given = [tensor_of(numbers, kind) for numbers in signed(kind)] if is_number(kind) else any_bytes(kind)
        x = copied(given[rank])
        y = zeros(_BLOCK, kind) if one.call == "reduce_scatter" else None
        self.perform(one.call, x, y, one.op)
        if not (is_number(kind) and has(kind, one.op)) or (one.op == "avg" and "scan" in one.call):
            return None
        if (one.call == "reduce" and rank != 0) or (one.call == "exscan" and rank == 0):
            return True  # these tensors are unspecified
        want = combined(one.op, kind, {"scan": rank + 1, "exscan": rank}.get(one.call, RANKS))
        return same(x, want) if y is None else same(y, want[rank * _BLOCK : (rank + 1) * _BLOCK])

    def _moves(self, one: Try) -> bool:
        kind, rank = getattr(torch, one.dtype), self.rank
        given, own = any_bytes(kind), slice(rank * _BLOCK, (rank + 1) * _BLOCK)
        first = [row[:_BLOCK] for row in given]
        want = {"broadcast": given[:1], "gather": first, "all_gather": first}.get(one.call)
        if want is None:
            want = [given[0][own]] if one.call == "scatter" else [row[own] for row in given]
        x = copied((first if want is first else given)[rank])
        y = None if one.call == "broadcast" else zeros(sum(map(len, want)), kind)
        self.perform(one.call, x, y)
        if one.call == "gather" and rank != 0:
            return True
        return same(x if y is None else y, torch.cat([part.view(torch.uint8) for part in want]).view(kind))

    def filled(self, count: int = 6) -> torch.Tensor:
        return torch.arange(count) + 10.0 * self.rank

    def in_place(self, call: str, x: torch.Tensor) -> bool:
        x.copy_(self.filled().view(x.shape))
        self.perform(call, x)
        return torch.equal(x, (_TOTAL if call == "all_reduce" else torch.arange(6.0)).view(x.shape))

    def conjugate(self) -> bool:
        x = torch.complex(self.filled(), torch.ones(6))
        x = x.conj() if self.rank == 0 else x
        self.perform("broadcast", x)
        return torch.equal(x.resolve_conj(), torch.complex(torch.arange(6.0), -torch.ones(6)))

    def all_gather(self, y: torch.Tensor) -> bool:
        self.perform("all_gather", self.filled(2), y)
        return y.flatten().tolist() == [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]

    def leaf(self) -> bool:
        x = self.filled().requires_grad_()
        self.perform("all_reduce", x)
        return x.requires_grad and x.is_leaf and torch.equal(x.detach(), _TOTAL)

    def uneven(self, *, known: bool) -> bool:
        blocks = [torch.zeros(count) for count in (1, 2, 3)] if known else None
        got = self.guarded(self.library.gather_blocks, blocks, self.filled(1 + self.rank))
        return [block.tolist() for block in got] == [[0.0], [10.0, 11.0], [20.0, 21.0, 22.0]]

    def disagree(self, **first: Any) -> bool:
        """Rank 0 makes another call than the rest. No result is right: all should raise."""
        rest, how = first.pop("rest", "all_reduce"), first if self.rank == 0 else {}
        x = self.filled(how.get("count", 1000)).to(getattr(torch, how.get("dtype", "float32")))
        call = how.get("call", "all_reduce" if self.rank == 0 else rest)
        self.perform(call, x, op=how.get("op", "sum"), root=how.get("root", 0))
        return False


_SITUATIONS: dict[str, Callable[[_Rank], bool]] = {
    "all_reduce of transposed tensors": lambda on: on.in_place("all_reduce", torch.zeros(3, 2).t()),
    "all_reduce of every second element": lambda on: on.in_place("all_reduce", torch.zeros(12)[::2]),
    "all_reduce of a leaf that requires grad": lambda on: on.leaf(),
    "broadcast of every second element": lambda on: on.in_place("broadcast", torch.zeros(12)[::2]),
    "broadcast, transposed on rank 0 only": lambda on: on.in_place(
        "broadcast", torch.zeros(2, 3) if on.rank else torch.zeros(3, 2).t()
    ),
    "broadcast of a conjugate view": lambda on: on.conjugate(),
    "all_gather into a transposed tensor": lambda on: on.all_gather(torch.zeros(2, 3).t()),
    "all_reduce, shapes differ, counts do not": lambda on: on.in_place(
        "all_reduce", torch.zeros((6,) if on.rank else (2, 3))
    ),
    "all_gather of 1, 2 and 3 elements": lambda on: on.uneven(known=True),
    "all_gather, sizes not known": lambda on: on.uneven(known=False),
    "all_reduce, counts differ": lambda on: on.disagree(count=1001),
    "all_reduce, dtypes differ": lambda on: on.disagree(dtype="int32"),
    "all_reduce, ops differ": lambda on: on.disagree(op="max"),
    "broadcast, roots differ": lambda on: on.disagree(call="broadcast", root=1, rest="broadcast"),
    "all_reduce here, broadcast there": lambda on: on.disagree(rest="broadcast"),
}
"""What is tried -> whether it is right."""

_TRIES: tuple[Try, ...] = (
    *(Try(call, dtype, op) for call in COMBINING for op in OPS for dtype in ALL_DTYPES),
    *(Try(call, dtype) for call in MOVING for dtype in ALL_DTYPES),
    *(Try(situation) for situation in _SITUATIONS),
)


def _outcomes(name: str, tries: Sequence[Try]) -> list[str]:
    """The outcome of each try with a library: one word for what all ranks have seen.

    Ranks are spoilt by _LOST, by one of _SITUATIONS, by a wrong result, and where they see different things. Then the
    next try has new ranks; and the same one is made again on new ones, unless it was their first: it may have suffered
    from another.
    """
    found: list[str] = []
    while (first := len(found)) < len(tries):
        with ExitStack() as ends:
            attempt = _new_ranks(name, ends)
            for one in tries[first:]:
                try:
                    seen = attempt(one)
                except WaitTimeout:
                    seen = ["hangs"]
                except PeerError as error:
                    if isinstance(error, RankFailed) and "was killed by signal" not in str(error):
                        raise  # a fault of what is tried here, not of the library
                    seen = ["aborts"]
                spoilt = len(set(seen)) > 1 or seen[0] in ("wrong", *_LOST) or one.call in _SITUATIONS
                if not spoilt or len(found) == first:
                    found.append(next((word for word in (*_LOST, "wrong", "raises") if word in seen), seen[0]))
                if spoilt:
                    break
    return found


def _new_ranks(name: str, ends: ExitStack) -> Callable[[Try], list[str]]:
    folder = ends.enter_context(tempfile.TemporaryDirectory())
    world = ends.enter_context(unisono.World(RANKS, timeout_s=30))
    return lambda one: world.run(lambda: _Rank(_Library(name, folder)).outcome(one))


def _dtype_table(library: str, found: Mapping[Try, str]) -> Table:
    """A table of the outcomes of all calls with an op and a dtype."""
    pairs = list(dict.fromkeys((one.call, one.op) for one in found if one.dtype))
    columns: dict[tuple[str, ...], list[str]] = {}
    for dtype in ALL_DTYPES:
        columns.setdefault(tuple(found[Try(call, dtype, op)] for call, op in pairs), []).append(dtype)
    rows: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for k, (call, op) in enumerate(pairs):
        cells = tuple(column[k] for column in columns)
        rows.setdefault(cells, {}).setdefault(call, []).append(op)
    lines: list[list[str]] = []
    for cells, ops_of in rows.items():
        calls_of: dict[str, list[str]] = {}
        for call, ops in ops_of.items():
            calls_of.setdefault(", ".join(ops), []).append(call)
        lines += [[", ".join(calls), ops, *cells] for ops, calls in calls_of.items()]
    return Table(library, ["call", "op", *(", ".join(dtypes) for dtypes in columns.values())], lines)


def calls(
    *,
    only: Annotated[str, typer.Option(help="Try these calls, separated by commas; all, without.")] = "",
    output: Output = None,
) -> None:
    """Try every call with every dtype and op on three ranks, by unisono and by Gloo. Takes a minute."""
    how = "Every call with every dtype and op, on three ranks."
    run = begin("What the calls take", how, code=["src/unisono/calls"])
    tries = [one for one in _TRIES if not only or one.call.split()[0].strip(",") in only.split(",")]
    found = {name: dict(zip(tries, _outcomes(name, tries), strict=True)) for name in (OURS, GLOO)}
    run.tables = [_dtype_table(name, outcomes) for name, outcomes in found.items()]
    rows = [[one.call, *(outcomes[one] for outcomes in found.values())] for one in tries if not one.dtype]
    run.tables.append(Table("situations", ["call", *found], rows))
    hand_in(run, output)


if __name__ == "__main__":
    typer.run(calls)
