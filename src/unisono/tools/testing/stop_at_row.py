"""Programs that stop at a row: that row waits for what never comes, so the kernel comes back from there, unfinished."""

from __future__ import annotations

from dataclasses import replace

from ...base.errors import ArgumentError
from ...engine.compile.plan import Plan
from ...engine.compile.program import STEP_BITS, Op, PlanWord, RowWord

_NEVER = (1 << STEP_BITS) - 1
"""A step that no program has."""


def stop_at_row(plan: Plan, rank: int, row: int) -> Plan:
    """A copy of a rank's plan that stops before a row; the plan itself goes on from there.

    Raises ArgumentError if the program has no such row.
    """
    rows, *rest = plan.kept
    if not 0 <= row < len(rows):
        raise ArgumentError(f"row {row}: the program of this {plan.record.collective} has {len(rows)} rows")
    rows, words = rows.copy(), plan.words.copy()
    rows[row] = 0
    rows[row, [RowWord.OP, RowWord.RANK, RowWord.STEP]] = Op.WAIT, rank, _NEVER
    words[PlanWord.ROWS] = rows.ctypes.data
    return replace(plan, address=words.ctypes.data, words=words, kept=(rows, *rest))
