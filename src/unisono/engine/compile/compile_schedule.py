"""Compile a table to one program per rank.

The passes are `versions` (what each move reads and makes), `places` (where each version lies) and `waits` (which rank
waits for which step); this file writes the rows. `interpret` runs them. `program_proof` proves them independently.
"""

from __future__ import annotations

import math

import numpy as np

from ...base.errors import AlgorithmError
from ...base.records import digest
from ...schedule.table import Schedule
from .places import place
from .program import ENTER, LEAVE, ROW_WORDS, STAGE, STEP_BITS, Lowering, Op, Program
from .versions import ProgramMove, make_versions
from .waits import order


def compile_schedule(schedule: Schedule, lowering: Lowering) -> list[Program]:
    """The programs of all ranks. Raises AlgorithmError for a table that has no program."""
    ranks = schedule.ranks
    versions = make_versions(schedule)
    placed = place(versions, ranks, lowering)
    before, after, gate = order(placed, ranks, lowering)
    waited = {wait for moves in after for move in moves for wait in move.waits}
    readers: list[set[int]] = [set() for _ in range(ranks)]
    for moves in after:
        for move in moves:
            for source in move.source:
                if source.where == STAGE and source.rank != move.rank:
                    readers[source.rank].add(move.rank)
    one_post = not any(step > gate for _, step in waited) and not lowering.zero_copy
    one_way = any(readers) and not all(readers)
    programs, table = [], digest(schedule.root, schedule.rows.tobytes())
    for rank in range(ranks):
        rows, refs, rounds = _encode(rank, before[rank], after[rank], gate, waited)
        if gate + len(after[rank]) >= 1 << STEP_BITS:
            raise AlgorithmError(
                f"{schedule.name}: rank {rank} makes {len(after[rank])} moves; no more than {1 << STEP_BITS} steps can "
                "be counted"
            )
        programs.append(
            Program(
                schedule.name, table, lowering, ranks, rows, refs, frozenset(readers[rank]), max(placed.slots), gate,
                versions.contract.blocks, versions.contract.per_block, one_post,
                one_way, rounds,
            )
        )  # fmt: skip
    return programs


def _encode(
    rank: int, before: list[ProgramMove], after: list[ProgramMove], gate: int, waited: set[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    rows: list[list[int]] = []
    rounds: list[int] = []
    refs: list[tuple[int, ...]] = []

    def post(step: int) -> int:
        return step if (rank, step) in waited else 0

    def add(move: ProgramMove, step: int) -> None:
        first = len(refs)
        refs.extend([*move.source, *move.to])
        rows.append([Op.MOVE, move.sub, len(move.source), first, len(move.to), post(step), int(move.last), move.extent])

    def in_round(number: int) -> None:
        """The rows that have been added are of this round."""
        rounds.extend([number] * (len(rows) - len(rounds)))

    for move in before:
        add(move, 0)
    rows.append([Op.GATE, 0, 0, 0, 0, post(gate), 0, 0])
    in_round(ENTER)
    for move in after:
        rows.extend([Op.WAIT, peer, step, 0, 0, 0, 0, 0] for peer, step in move.waits)
        if move.source or post(move.step):
            add(move, move.step)
        in_round(LEAVE if math.isinf(move.round) else math.ceil(move.round))  # between rounds: copies for the next one
    return np.array(rows, np.int64).reshape(-1, ROW_WORDS), np.array(refs, np.int64).reshape(-1, 4), tuple(rounds)
