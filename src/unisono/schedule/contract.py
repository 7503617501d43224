"""The contract of each collective: what the slots hold before, and what they must hold after. Where a table breaks it.

A slot is (rank, buffer, chunk). Its content is (origin chunk, set of ranks as a number): the combination of these
ranks' inputs in the origin chunk."""

import os
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from ..base.errors import AlgorithmError, ArgumentError
from .table import Schedule, X

Slot = tuple[int, int, int]
Value = tuple[int, int]

HOLDERS = {
    "broadcast": ("root", "all"),
    "reduce": ("all", "root"),
    "scatter": ("root", "owner"),
    "gather": ("owner", "root"),
    "all_gather": ("owner", "all"),
    "reduce_scatter": ("all", "owner"),
    "all_reduce": ("all", "all"),
}
"""The ranks that hold a chunk before and after: the root, its owner (the rank whose block it is in) or all. Afterwards
they hold the combination of what was held before. Only collectives in which chunks keep their numbers are here."""

ROOTED = frozenset(name for name, who in HOLDERS.items() if "root" in who)
"""Collectives with a root."""

BLOCKED = frozenset(name for name, who in HOLDERS.items() if "owner" in who) | {"all_to_all"}
"""Collectives on one block per rank. In the others a tensor may be cut anywhere."""

ONE_IN = frozenset(name for name, (before, _) in HOLDERS.items() if before == "owner")
"""Collectives to which a rank gives one block."""

ONE_OUT = frozenset(name for name, (_, after) in HOLDERS.items() if after == "owner")
"""Collectives from which a rank gets one block."""

REDUCING = frozenset(name for name, (before, _) in HOLDERS.items() if before == "all")
"""Collectives that combine the inputs of all ranks."""

DUALS = {"all_to_all": "all_to_all"} | {
    name: dual for name, who in HOLDERS.items() for dual, other in HOLDERS.items() if other == who[::-1] != who
}
"""Collective -> its dual, with all arrows reversed: the holders before and after change places."""


class Contract(NamedTuple):
    """What a collective promises: what slots hold before and after.

    A rank's input tensor is its slots in `before`, in order of (buffer, chunk); its output tensor is its slots in
    `after`.

    Attributes:
        blocks: The number of blocks in the longer of the two; a block has `per_block` chunks.
    """

    before: dict[Slot, Value]
    after: dict[Slot, Value]
    blocks: int
    per_block: int


def contract(schedule: Schedule, chunks: Sequence[int] | None = None, marks: Sequence[int] = ()) -> Contract:
    """The contract that a table must keep.

    Args:
        chunks: Only these chunks of the input. None: all.
        marks: For each rank the number that stands for its contribution; a set is the sum of its marks. By default the
            rank's bit.

    Raises:
        ArgumentError: There is no such collective.
    """
    p, C, kind, result, root = schedule.ranks, schedule.chunks, schedule.collective, schedule.result, schedule.root
    if kind in BLOCKED and C % p:
        raise ArgumentError(f"{schedule.name}: got {C} chunks, expected a multiple of {p} for {kind} over {p} ranks")
    k = max(1, C // p)
    some = range(C) if chunks is None else chunks
    marks = marks or [1 << r for r in range(p)]
    start, end = HOLDERS.get(kind, ("all", "all"))
    total, until = sum(marks), list(accumulate(marks)) if kind in ("scan", "exscan") else []

    def holders(who: str, c: int) -> Sequence[int]:
        return range(p) if who == "all" else (root if who == "root" else c // k,)

    before = {(r, X, c): (c, marks[r]) for c in some for r in holders(start, c)}
    if kind in HOLDERS:
        whole = {c: total if start == "all" else marks[holders(start, c)[0]] for c in some}
        after = {(r, result, c): (c, whole[c]) for c in some for r in holders(end, c)}
    elif kind == "all_to_all":
        after = {(c // k, result, r * k + c % k): (c, marks[r]) for c in some for r in range(p)}
    elif kind == "barrier":
        after = {(r, result, 0): (0, total) for r in range(p)}
    elif kind == "scan":
        after = {(r, result, c): (c, until[r]) for c in some for r in range(p)}
    elif kind == "exscan":
        after = {(r, result, c): (c, until[r - 1]) for c in some for r in range(1, p)}
    else:
        raise ArgumentError(f"unknown collective {kind!r}. `unisono explain` lists the known ones.")
    return Contract(before, after, *((p, k) if kind in BLOCKED else (1, C)))


class Fault(NamedTuple):
    """The first error in a table; the argument of the AlgorithmError that a proof raises.

    Attributes:
        name: The name of the table.
        collective: Its collective.
        reason: What is wrong, as a clause.
        round: The round with the error. None: it shows only at the end.
        slot: The slot with the wrong content. None: a row has a number out of range.
        line: The `yield` that made the round, as file:line, or "".
    """

    name: str
    collective: str
    reason: str
    round: int | None = None
    slot: Slot | None = None
    line: str = ""

    def __str__(self) -> str:
        line = f" ({self.line})" if self.line else ""
        return f"{self.name} is not a correct {self.collective}: {self.reason}{line}"


def fault(
    schedule: Schedule,
    reason: str,
    *,
    number: int | None = None,
    slot: Slot | None = None,
    guilty: int | None = None,
    ordered: bool = False,
) -> AlgorithmError:
    """The error for a fault.

    number: the round in which it happens.
    guilty: the round whose `yield` is named, if it is another round.
    ordered: it is a fault only for ops that do not commute.
    """
    blamed = number if guilty is None else guilty
    known = blamed is not None and 0 <= blamed < len(schedule.yields)
    line = schedule.yields[blamed] if known and blamed is not None else None
    text = f"in round {number} {reason}" if number is not None else reason
    kind = schedule.collective + (" for ops that do not commute" if ordered else "")
    return AlgorithmError(Fault(schedule.name, kind, text, number, slot, line_text(*line) if line else ""))


def slot_text(slot: Slot) -> str:
    """`rank 1's chunk 0`, or `rank 1's chunk 0 of Y`."""
    rank, buffer, chunk = slot
    return f"rank {rank}'s chunk {chunk}" + (f" of {'XYT'[buffer]}" if buffer != X else "")


def ranks_in(bits: int) -> Iterable[int]:
    return (rank for rank in range(bits.bit_length()) if bits >> rank & 1)


def line_text(file: str, number: int) -> str:
    """file:line; relative to this folder if it is below."""
    here = os.path.relpath(file)
    return f"{file if here.startswith(os.pardir) else here}:{number}"
