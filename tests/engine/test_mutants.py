"""The proof of programs is worth what it rejects: each small damage to a program must show within two calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from unisono.base.errors import ProgramError
from unisono.engine.compile.compile_schedule import compile_schedule
from unisono.engine.compile.program import IN, OUT, Op, Program, RowWord
from unisono.engine.compile.program_proof import CompiledCall, prove_calls
from unisono.schedule.algorithms import CATALOGUE
from unisono.tools.testing.check import lowerings

pytestmark = pytest.mark.quick

MANY_ROWS = 200
SIZES = (2, 3, pytest.param(4, marks=pytest.mark.long))


@cache
def calls(ranks: int) -> list[CompiledCall]:
    """A call of every algorithm whose programs are not very long, lowered in every way."""
    found = []
    for algorithm in CATALOGUE.values():
        if algorithm.allows(ranks):
            schedule = algorithm.schedule(ranks, ranks - 1)
            for how in lowerings(schedule):
                programs = compile_schedule(schedule, how)
                if sum(len(program.rows) for program in programs) <= MANY_ROWS:
                    found.append(CompiledCall(schedule, programs, how))
    return found


def each_program(ranks: int) -> Iterator[tuple[CompiledCall, int, Program]]:
    for call in calls(ranks):
        for rank, program in enumerate(call.programs):
            yield call, rank, program


def is_rejected(call: CompiledCall, rank: int, program: Program) -> str:
    """Why two calls of which one rank runs this program are rejected, or ""."""
    programs = list(call.programs)
    programs[rank] = program
    broken = call._replace(programs=programs)
    try:
        prove_calls([broken, broken])
    except ProgramError as error:
        return str(error)
    return ""


def say(call: CompiledCall, rank: int, row: int) -> str:
    return f"{call.schedule.name} ({call.lowering}), rank {rank}, row {row}"


@pytest.mark.parametrize("ranks", [*SIZES, pytest.param(5, marks=pytest.mark.long)])
def test_no_wait_is_superfluous(ranks: int) -> None:
    tried = 0
    for call, rank, program in each_program(ranks):
        for k in np.flatnonzero(program.rows[:, RowWord.OP] == Op.WAIT):
            assert is_rejected(call, rank, replace(program, rows=np.delete(program.rows, k, axis=0))), say(
                call, rank, k
            )
            tried += 1
    assert tried > 50


@pytest.mark.parametrize("ranks", SIZES)
def test_no_step_may_be_posted_before_its_write(ranks: int) -> None:
    tried = 0
    for call, rank, program in each_program(ranks):
        rows = program.rows
        for k in np.flatnonzero((rows[:, RowWord.OP] == Op.MOVE) & (rows[:, RowWord.POST] > 0)):
            early = rows[k].copy()
            early[[RowWord.NIN, RowWord.NOUT]] = 0
            late = rows.copy()
            late[k, RowWord.POST] = 0
            assert is_rejected(call, rank, replace(program, rows=np.insert(late, k, early, axis=0))), say(call, rank, k)
            tried += 1
    assert tried > 30


@pytest.mark.parametrize("ranks", SIZES)
def test_no_output_is_superfluous(ranks: int) -> None:
    tried = 0
    for call, rank, program in each_program(ranks):
        for k in np.flatnonzero(program.rows[:, RowWord.OP] == Op.MOVE):
            row, refs = program.rows[k], program.refs.tolist()
            first, nin, nout = row[RowWord.FIRST], row[RowWord.NIN], row[RowWord.NOUT]
            for output in range(nout):
                fewer = refs[first : first + nin + nout]
                del fewer[nin + output]
                rows = program.rows.copy()
                rows[k, RowWord.FIRST], rows[k, RowWord.NOUT] = len(refs), nout - 1
                damaged = replace(program, rows=rows, refs=np.array(refs + fewer))
                assert is_rejected(call, rank, damaged), say(call, rank, k)
                tried += 1
    assert tried > 50


@pytest.mark.parametrize("ranks", SIZES)
def test_rows_may_only_change_places_where_nothing_depends_on_it(ranks: int) -> None:
    """What survives is provably harmless: two waits; a wait made earlier; two moves that touch different memory."""
    rejected = 0
    for call, rank, program in each_program(ranks):
        for k in range(len(program.rows) - 1):
            rows = program.rows.copy()
            rows[[k, k + 1]] = rows[[k + 1, k]]
            if is_rejected(call, rank, replace(program, rows=rows)):
                rejected += 1
            else:
                assert may_swap(call, program, rank, k), say(call, rank, k)
    assert rejected > 50


def may_swap(call: CompiledCall, program: Program, rank: int, k: int) -> bool:
    kinds = tuple(program.rows[k : k + 2, RowWord.OP])
    if kinds in ((Op.WAIT, Op.WAIT), (Op.MOVE, Op.WAIT)):
        return True
    if kinds == (Op.GATE, Op.MOVE):  # before the gate, a rank may do what concerns nobody else
        reads, writes = memory(call, program, k + 1)
        return all(owner == rank for _, owner, _, _ in reads | writes)
    if kinds == (Op.MOVE, Op.MOVE):
        (reads, writes), (more_reads, more_writes) = memory(call, program, k), memory(call, program, k + 1)
        apart = not (writes & (more_reads | more_writes)) and not (more_writes & reads)
        return apart and not program.rows[k : k + 2, RowWord.POST].all()
    return False


Refs = set[tuple[int, ...]]


def memory(call: CompiledCall, program: Program, k: int) -> tuple[Refs, Refs]:
    """What row k reads and what it writes."""
    row = program.rows[k]
    first, nin, nout = row[RowWord.FIRST], row[RowWord.NIN], row[RowWord.NOUT]
    refs = [tuple(ref) for ref in program.refs[first : first + nin + nout].tolist()]
    if call.lowering.in_place:
        refs = [(IN, *ref[1:]) if ref[0] == OUT else ref for ref in refs]
    return set(refs[:nin]), set(refs[nin:])


@pytest.mark.parametrize("ranks", SIZES)
def test_no_reader_of_a_staging_area_may_be_forgotten(ranks: int) -> None:
    """The wait for a reader of a half is superfluous only where each segment waits for that reader by other ways."""
    rejected = 0
    for call, rank, program in each_program(ranks):
        for reader in program.readers:
            damaged = replace(program, readers=program.readers - {reader})
            if is_rejected(call, rank, damaged):
                rejected += 1
            else:
                programs = [damaged if one is program else one for one in call.programs]
                assert reader in waited_for(programs, rank), f"{say(call, rank, 0)}, reader {reader}"
    assert rejected > 5


def waited_for(programs: list[Program], rank: int) -> set[int]:
    """The ranks for which this one waits, for a step or as readers, or for which one of those waits."""
    known, found = {rank}, {rank}
    while found:
        rows = np.concatenate([programs[one].rows for one in found])
        waits = set(rows[rows[:, RowWord.OP] == Op.WAIT, RowWord.RANK].tolist())
        found = waits.union(*(programs[one].readers for one in found)) - known
        known |= found
    return known
