"""Where and why a table breaks the contract of its collective, and the sentence about it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from ..base.errors import AlgorithmError
from .contract import Slot
from .table import Schedule, X


@dataclass(frozen=True)
class Fault:
    """The first error in a table; the argument of the AlgorithmError that a proof raises.

    name, collective: of the table. reason: what is wrong, as a clause. round: None if the error shows only at the end.
    slot: the slot with the wrong content; None if a row has a number out of range. line: the `yield` that made the
    round, as file:line, or "".
    """

    name: str
    collective: str
    reason: str
    round: int | None = None
    slot: Slot | None = None
    line: str = ""

    def __str__(self) -> str:
        line = f" ({self.line})" if self.line else ""
        return f"{self.name} is no {self.collective}: {self.reason}{line}"


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

    number: the round in which it happens. guilty: the round whose `yield` is named, if another. ordered: it is a fault
    only for ops that do not commute.
    """
    blamed = number if guilty is None else guilty
    known = blamed is not None and 0 <= blamed < len(schedule.yields)
    line = schedule.yields[blamed] if known and blamed is not None else None
    text = f"in round {number} {reason}" if number is not None else reason
    kind = schedule.collective + (" for ops that do not commute" if ordered else "")
    return AlgorithmError(Fault(schedule.name, kind, text, number, slot, _line_text(line)))


def slot_text(slot: Slot) -> str:
    """`rank 1's chunk 0`, or `rank 1's chunk 0 of Y`."""
    rank, buffer, chunk = slot
    return f"rank {rank}'s chunk {chunk}" + (f" of {'XYT'[buffer]}" if buffer != X else "")


def ranks_in(bits: int) -> Iterable[int]:
    """The ranks in a set of bits."""
    return (rank for rank in range(bits.bit_length()) if bits >> rank & 1)


def _line_text(line: tuple[str, int] | None) -> str:
    if line is None:
        return ""
    file, number = line
    here = os.path.relpath(file)
    return f"{file if here.startswith(os.pardir) else here}:{number}"
