"""The calls that are tried on three ranks, and the verdict on each.

There are three ranks because an exscan of two combines nothing. Values are small whole numbers, whose sums and products
are exact in every dtype. Some are negative, so that a library that takes a dtype for another of its size is found out.
An error in a call of the library under test is an outcome; any other is a bug of the test.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from unisono.base.errors import PeerError, RankFailed, WaitTimeout
from unisono.engine.reducers import DTYPES

RANKS = 3
COMBINING = ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan")
MOVING = ("broadcast", "scatter", "gather", "all_gather", "all_to_all")

FACTORS = (0.5, 2.0, 1.0)
"""What each rank's numbers are multiplied with in a premul_sum."""

OPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, y: x + y,
    "avg": lambda x, y: x + y,
    "product": lambda x, y: x * y,
    "min": min,
    "max": max,
    "band": lambda x, y: x & y,
    "bor": lambda x, y: x | y,
    "bxor": lambda x, y: x ^ y,
    "premul_sum": lambda x, y: x + y,
    "custom": lambda x, y: x + y + 1,
}
"""The ops, on two numbers."""

ALL_DTYPES = (*DTYPES, "complex32", "float8_e8m0fnu", "float4_e2m1fn_x2", "int4")
"""Those that can be combined, and some that can be moved only."""

_NUMBERS = ((0, 1, -2, 1, 0, 2), (1, -1, 2, 0, 0, 1), (-2, 0, 1, 1, 2, -1))
_BLOCK = 2


@dataclass(frozen=True)
class Try:
    """A call with a dtype and an op (of a call that only moves, none), or one of SITUATIONS."""

    call: str
    dtype: str = ""
    op: str = ""


LOST = ("aborts", "hangs")
"""Outcomes after which the ranks cannot be used any more."""


Attempt = Callable[[Try], list[str]]
"""Makes a try on all ranks, and returns what each has seen."""


class NoResult(Exception):
    """Raised where a call has no result. word: "raises", "hangs", or what the library lacks, such as "no op"."""

    def __init__(self, word: str) -> None:
        self.word = word
        super().__init__(word)


class Library:
    """Makes calls, and turns what they raise into NoResult."""

    rank: int

    def perform(
        self, call: str, x: torch.Tensor, y: torch.Tensor | None = None, op: str = "sum", root: int = 0
    ) -> None:
        """Make a call: in place with x, or from x to y."""
        self._guarded(self._perform, call, x, y, op, root)

    def gather_blocks(self, blocks: Sequence[torch.Tensor] | None, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """An all_gather of blocks of several sizes; None where they are not known. Returns the blocks."""
        made: Sequence[torch.Tensor] = self._guarded(self._gather_blocks, blocks, x)
        return made

    def _guarded(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except NoResult:
            raise
        except Exception as error:
            raise NoResult(self._word(error)) from error

    def _perform(self, call: str, x: torch.Tensor, y: torch.Tensor | None, op: str, root: int) -> None:
        raise NotImplementedError

    def _gather_blocks(self, blocks: Sequence[torch.Tensor] | None, x: torch.Tensor) -> Sequence[torch.Tensor]:
        raise NotImplementedError

    def _word(self, _error: Exception) -> str:
        return "raises"


_TOTAL = 3 * torch.arange(6.0) + 30
"""The sum of what three ranks pass: 0 to 5, 10 to 15, 20 to 25."""


def _filled(library: Library, count: int = 6) -> torch.Tensor:
    return torch.arange(count) + 10.0 * library.rank


def _in_place(call: str, library: Library, x: torch.Tensor) -> bool:
    x.copy_(_filled(library).view(x.shape))
    library.perform(call, x)
    return torch.equal(x, (_TOTAL if call == "all_reduce" else torch.arange(6.0)).view(x.shape))


_all_reduce, _broadcast = functools.partial(_in_place, "all_reduce"), functools.partial(_in_place, "broadcast")


def _conjugate(library: Library) -> bool:
    x = torch.complex(_filled(library), torch.ones(6))
    x = x.conj() if library.rank == 0 else x
    library.perform("broadcast", x)
    return torch.equal(x.resolve_conj(), torch.complex(torch.arange(6.0), -torch.ones(6)))


def _all_gather(library: Library, y: torch.Tensor) -> bool:
    library.perform("all_gather", _filled(library, 2), y)
    return y.flatten().tolist() == [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]


def _leaf(library: Library) -> bool:
    x = _filled(library).requires_grad_()
    library.perform("all_reduce", x)
    return x.requires_grad and x.is_leaf and torch.equal(x.detach(), _TOTAL)


def _uneven(library: Library, known: bool) -> bool:
    blocks = [torch.zeros(count) for count in (1, 2, 3)] if known else None
    got = library.gather_blocks(blocks, _filled(library, 1 + library.rank))
    return [block.tolist() for block in got] == [[0.0], [10.0, 11.0], [20.0, 21.0, 22.0]]


def _disagree(
    call: tuple[str, str] = ("all_reduce", "all_reduce"), op: tuple[str, str] = ("sum", "sum"),
    root: tuple[int, int] = (0, 0), count: tuple[int, int] = (6, 6), dtype: tuple[str, str] = ("float32", "float32"),
) -> Callable[[Library], bool]:  # fmt: skip
    """Rank 0 makes a call with the first of each two, the rest with the second. None is right: all should raise."""

    def attempt(library: Library) -> bool:
        at = int(library.rank > 0)
        x = _filled(library, count[at]).to(getattr(torch, dtype[at]))
        library.perform(call[at], x, op=op[at], root=root[at])
        return False

    return attempt


SITUATIONS: dict[str, Callable[[Library], bool]] = {
    "all_reduce of transposed tensors": lambda lib: _all_reduce(lib, torch.zeros(3, 2).t()),
    "all_reduce of every second element": lambda lib: _all_reduce(lib, torch.zeros(12)[::2]),
    "all_reduce of a leaf that requires grad": _leaf,
    "broadcast of every second element": lambda lib: _broadcast(lib, torch.zeros(12)[::2]),
    "broadcast, transposed on rank 0 only": lambda lib: _broadcast(
        lib, torch.zeros(2, 3) if lib.rank else torch.zeros(3, 2).t()
    ),
    "broadcast of a conjugate view": _conjugate,
    "all_gather into a transposed tensor": lambda lib: _all_gather(lib, torch.zeros(2, 3).t()),
    "all_reduce, shapes differ, counts do not": lambda lib: _all_reduce(lib, torch.zeros((6,) if lib.rank else (2, 3))),
    "all_gather of 1, 2 and 3 elements": lambda lib: _uneven(lib, known=True),
    "all_gather, sizes not known": lambda lib: _uneven(lib, known=False),
    "all_reduce, counts differ": _disagree(count=(1001, 1000)),
    "all_reduce, dtypes differ": _disagree(dtype=("int32", "float32")),
    "all_reduce, ops differ": _disagree(op=("max", "sum")),
    "broadcast, roots differ": _disagree(call=("broadcast", "broadcast"), root=(0, 1)),
    "all_reduce here, broadcast there": _disagree(call=("all_reduce", "broadcast")),
}
"""What is tried -> whether it is right."""


def outcome(one: Try, library: Library) -> str:
    """Make the call on this rank. Returns "right", "wrong", "undefined", or the word of a NoResult."""
    try:
        if one.call in SITUATIONS:
            right: bool | None = SITUATIONS[one.call](library)
        elif one.call in COMBINING:
            right = _combines(one, library)
        else:
            right = _moves(one, library)
    except NoResult as instead:
        return instead.word
    return "undefined" if right is None else "right" if right else "wrong"


def worst(outcomes: Sequence[str]) -> str:
    """One word for what several ranks have seen."""
    return next((word for word in (*LOST, "wrong", "raises") if word in outcomes), outcomes[0])


def outcomes(
    tries: Sequence[Try], new_ranks: Callable[[], AbstractContextManager[Attempt]], *, wrong_spoils: bool = True
) -> list[str]:
    """The outcome of each try.

    Ranks are spoilt by LOST, by one of SITUATIONS and, unless told otherwise, by a wrong result or where they see
    different things. Then the next try has new ranks; and the same one is made again on new ones, unless it was their
    first: it may have suffered from another.
    """
    found: list[str] = []
    while (first := len(found)) < len(tries):
        with new_ranks() as attempt:
            for one in tries[first:]:
                try:
                    seen = attempt(one)
                except WaitTimeout:
                    seen = ["hangs"]
                except PeerError as error:
                    if isinstance(error, RankFailed) and "was killed by signal" not in str(error):
                        raise  # a fault of what is tried here, not of the library
                    seen = ["aborts"]
                apart = wrong_spoils and (len(set(seen)) > 1 or seen[0] == "wrong")
                spoilt = apart or seen[0] in LOST or one.call in SITUATIONS
                if not spoilt or len(found) == first:
                    found.append(worst(seen))
                if spoilt:
                    break
    return found


def _combines(one: Try, library: Library) -> bool | None:
    """Is the combination right? None where no result is defined."""
    kind, rank = getattr(torch, one.dtype), library.rank
    given = [_tensor(numbers, kind) for numbers in _signed(kind)] if is_number(kind) else _bytes(kind)
    x = _copy(given[rank])
    y = _zeros(_BLOCK, kind) if one.call == "reduce_scatter" else None
    library.perform(one.call, x, y, one.op)
    if not (is_number(kind) and _has(kind, one.op)) or (one.op == "avg" and "scan" in one.call):
        return None
    if one.call == "reduce" and rank != 0:
        return True  # other ranks' tensors are unspecified
    if one.call == "exscan" and rank == 0:
        return True
    upto = {"scan": rank + 1, "exscan": rank}.get(one.call, RANKS)
    want = _combined(one.op, kind, upto)
    own = slice(rank * _BLOCK, (rank + 1) * _BLOCK)
    return _same(x, want) if y is None else _same(y, want[own])


def _moves(one: Try, library: Library) -> bool:
    kind, rank = getattr(torch, one.dtype), library.rank
    given, own = _bytes(kind), slice(rank * _BLOCK, (rank + 1) * _BLOCK)
    want = {
        "broadcast": lambda: [given[0]],
        "scatter": lambda: [given[0][own]],
        "gather": lambda: [row[:_BLOCK] for row in given],
        "all_gather": lambda: [row[:_BLOCK] for row in given],
        "all_to_all": lambda: [row[own] for row in given],
    }[one.call]()
    x = _copy(given[rank][:_BLOCK] if one.call in ("gather", "all_gather") else given[rank])
    y = None if one.call == "broadcast" else _zeros(sum(map(len, want)), kind)
    library.perform(one.call, x, y)
    if one.call == "gather" and rank != 0:
        return True
    return _same(x if y is None else y, torch.cat([part.view(torch.uint8) for part in want]).view(kind))


def is_number(kind: torch.dtype) -> bool:
    """Does torch know what numbers of this dtype are?"""
    return str(kind).removeprefix("torch.") in (*DTYPES, "complex32")


def _has(kind: torch.dtype, op: str) -> bool:
    inexact = kind.is_floating_point or kind.is_complex
    if op in ("band", "bor", "bxor"):
        return not inexact
    if op in ("min", "max"):
        return not kind.is_complex
    if op == "premul_sum":
        return inexact
    return op != "avg" or kind is not torch.bool


def _signed(kind: torch.dtype) -> list[list[int]]:
    """The numbers of each rank as a dtype has them: bools are 0 and 1, and what has no sign loses it."""
    if kind is torch.bool:
        return [[n % 2 for n in numbers] for numbers in _NUMBERS]
    return [[n if kind.is_signed else abs(n) for n in numbers] for numbers in _NUMBERS]


def _combined(op: str, kind: torch.dtype, ranks: int) -> torch.Tensor:
    rows: list[list[Any]] = [list(numbers) for numbers in _signed(kind)]
    if op == "premul_sum":
        rows = [[n * factor for n in numbers] for numbers, factor in zip(rows, FACTORS, strict=True)]
    totals = [functools.reduce(OPS[op], column) for column in zip(*rows[:ranks], strict=True)]
    if op == "avg":
        inexact = kind.is_floating_point or kind.is_complex
        totals = [total / ranks if inexact else int(total / ranks) for total in totals]
    return _tensor(totals, kind)


def _tensor(numbers: Sequence[Any], kind: torch.dtype) -> torch.Tensor:
    exact = torch.complex128 if kind.is_complex else torch.float64 if kind.is_floating_point else torch.int64
    return torch.tensor(numbers, dtype=exact).to(kind)


def _bytes(kind: torch.dtype) -> list[torch.Tensor]:
    """Six elements of each rank, with other bytes everywhere, as far as there are so many."""
    raw = torch.arange(6 * RANKS * kind.itemsize) * 7 % 251
    whole = (raw % 2 if kind is torch.bool else raw).to(torch.uint8).view(kind)
    return [whole[6 * rank : 6 * rank + 6] for rank in range(RANKS)]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8).clone().view(tensor.dtype)


def _zeros(count: int, kind: torch.dtype) -> torch.Tensor:
    return torch.zeros(count * kind.itemsize, dtype=torch.uint8).view(kind)


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Bit for bit; but of floats, 0 and -0 are one."""
    if torch.equal(x.view(torch.uint8), y.view(torch.uint8)):
        return True
    if not (x.dtype.is_floating_point or x.dtype.is_complex) or str(x.dtype).removeprefix("torch.") not in DTYPES:
        return False
    wide = torch.complex128 if x.dtype.is_complex else torch.float64
    return torch.equal(x.to(wide), y.to(wide))


TRIES: tuple[Try, ...] = (
    *(Try(call, dtype, op) for call in COMBINING for op in OPS for dtype in ALL_DTYPES),
    *(Try(call, dtype) for call in MOVING for dtype in ALL_DTYPES),
    *(Try(situation) for situation in SITUATIONS),
)
