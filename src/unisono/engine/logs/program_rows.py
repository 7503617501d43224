"""The rows of a program as a note has them, for those who read when they ran (see `row_log`)."""

from __future__ import annotations

from ..compile.program import Op, Program, RefWord, RowWord
from .plan_registry import ProgramRow


def program_rows(program: Program) -> tuple[ProgramRow, ...]:
    """The rows of one rank's program."""
    ranks = program.refs[:, RefWord.RANK].tolist()
    found = []
    for at, row in zip(program.rounds, program.rows.tolist(), strict=True):
        if row[RowWord.OP] == Op.WAIT:
            found.append(ProgramRow(at, Op.WAIT, (row[RowWord.RANK],)))
        elif row[RowWord.OP] == Op.GATE:
            found.append(ProgramRow(at, Op.GATE))
        else:
            first, nin, nout = row[RowWord.FIRST], row[RowWord.NIN], row[RowWord.NOUT]
            sources, targets = ranks[first : first + nin], ranks[first + nin : first + nin + nout]
            found.append(ProgramRow(at, Op.MOVE, tuple(sources), tuple(targets)))
    return tuple(found)
