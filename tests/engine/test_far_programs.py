"""Programs of several hosts are proved as those of one host; each small damage to a row between hosts must show."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product

import numpy as np
import pytest

from unisono.base.errors import ProgramError
from unisono.engine.compile.compile_schedule import compile_schedule
from unisono.engine.compile.program import Lowering, Op, Program, RowWord
from unisono.engine.compile.program_proof import CompiledCall, prove_calls
from unisono.schedule import ROOTED, Hosts
from unisono.schedule.algorithms.over_hosts import CORES, RAILED, spanning
from unisono.schedule.combine import pipeline

pytestmark = pytest.mark.quick

SHAPES = "2x1", "2x2", "3+1", "2x2:round_robin", "3x2"


@cache
def calls(shape: str) -> list[CompiledCall]:
    """A call of every table over these hosts, in one piece and in two, with every number of rails and some roots."""
    hosts, found = Hosts.parse(shape), list[CompiledCall]()
    for kind in ("all_reduce", "broadcast", "reduce"):
        roots = {0, hosts.ranks - 1} if kind in ROOTED else {0}
        rails = {1, hosts.rails} if kind in RAILED else {1}
        for core, rail, root, pieces, in_place in product(CORES[kind], rails, roots, (1, 2), (True, False)):
            table = spanning(kind, hosts, root, rails=rail, core=core, segments=2)
            table = pipeline(table, pieces) if pieces > 1 else table
            how = Lowering(in_place=in_place)
            found.append(CompiledCall(table, compile_schedule(table, how), how))
    return found


def why_rejected(call: CompiledCall, rank: int, program: Program) -> str:
    """Why two calls of which one rank runs this program are rejected, or ""."""
    programs = [program if rank == other else each for other, each in enumerate(call.programs)]
    try:
        prove_calls([call._replace(programs=programs)] * 2)
    except ProgramError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("shape", SHAPES)
def test_programs_of_several_hosts_are_proved(shape: str) -> None:
    for call in calls(shape):
        prove_calls([call, call])


@pytest.mark.parametrize("shape", SHAPES)
def test_programs_over_hosts_follow_each_other(shape: str) -> None:
    some = calls(shape)[::5]
    prove_calls([*some, *reversed(some)])


Damaged = Iterator[tuple[int, Program]]


def rows_of(program: Program, kind: Op) -> list[int]:
    return [int(k) for k in np.flatnonzero(program.rows[:, RowWord.OP] == kind)]


def left_out(program: Program, kind: Op) -> Damaged:
    for k in rows_of(program, kind):
        yield k, program._replace(rows=np.delete(program.rows, k, axis=0))


def without_send(program: Program) -> Damaged:
    return left_out(program, Op.SEND)


def without_receive(program: Program) -> Damaged:
    return left_out(program, Op.RECV)


def without_wait(program: Program) -> Damaged:
    return left_out(program, Op.WAIT)


def of_another_slot(program: Program) -> Damaged:
    for k in (*rows_of(program, Op.SEND), *rows_of(program, Op.RECV)):
        if not program.rows[k, RowWord.EMPTY]:
            rows = program.rows.copy()
            rows[k, RowWord.SLOT] += 1
            yield k, program._replace(rows=rows)


def sent_early(program: Program) -> Damaged:
    """A SEND before the row that makes what leaves: the MOVE with the slot among its outputs, or the RECV."""
    for k in rows_of(program, Op.SEND):
        slot = program.rows[k, RowWord.SLOT]
        for j in range(k) if not program.rows[k, RowWord.EMPTY] else ():
            if makes(program, j, slot):
                order = [*range(j), k, *(i for i in range(j, len(program.rows)) if i != k)]
                yield k, program._replace(rows=program.rows[order])


def taken_late(program: Program) -> Damaged:
    """A RECV behind the first row that reads what has come."""
    for k in rows_of(program, Op.RECV):
        slot = program.rows[k, RowWord.SLOT]
        reads = [j for j in range(k + 1, len(program.rows)) if uses(program, j, slot)]
        if reads and not program.rows[k, RowWord.EMPTY]:
            order = [i for i in range(len(program.rows)) if i != k]
            order.insert(reads[0], k)
            yield k, program._replace(rows=program.rows[order])


def refs_of(program: Program, k: int) -> list[list[int]]:
    row = program.rows[k]
    first = row[RowWord.FIRST_REF]
    refs: list[list[int]] = program.refs[first : first + row[RowWord.NIN] + row[RowWord.NOUT]].tolist()
    return refs


def makes(program: Program, k: int, slot: int) -> bool:
    row = program.rows[k]
    if row[RowWord.OP] == Op.MOVE:
        return any(ref[0] == 2 and ref[2] == slot for ref in refs_of(program, k)[row[RowWord.NIN] :])
    return bool(row[RowWord.OP] == Op.RECV and row[RowWord.SLOT] == slot)


def uses(program: Program, k: int, slot: int) -> bool:
    row = program.rows[k]
    if row[RowWord.OP] == Op.MOVE:
        me = next(iter(own(program)))
        return any(ref[0] == 2 and ref[1:3] == [me, slot] for ref in refs_of(program, k)[: row[RowWord.NIN]])
    return bool(row[RowWord.OP] == Op.SEND and row[RowWord.SLOT] == slot)


def own(program: Program) -> set[int]:
    """The rank of a program: it owns all places that its moves write."""
    found = set[int]()
    for k in rows_of(program, Op.MOVE):
        found |= {ref[1] for ref in refs_of(program, k)[program.rows[k, RowWord.NIN] :]}
    return found or {-1}


DAMAGES = [without_send, without_receive, without_wait, of_another_slot, sent_early, taken_late]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_damage_to_a_row_between_hosts_is_refused(shape: str, damage: Callable[[Program], Damaged]) -> None:
    tried = 0
    for call in calls(shape):
        for rank, program in enumerate(call.programs):
            for row, damaged in damage(program):
                assert why_rejected(call, rank, damaged), f"{call.schedule.name}, rank {rank}, row {row}"
                tried += 1
    assert tried > 10 or (damage is without_wait and shape == "2x1")


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_rank_without_its_barrier_ends_too_early(shape: str) -> None:
    tried = 0
    for call in calls(shape):
        empty = [program.rows[:, RowWord.EMPTY] * (program.rows[:, RowWord.OP] >= Op.SEND) for program in call.programs]
        if any(one.any() for one in empty):
            rows = [p.rows[~one.astype(bool)] for p, one in zip(call.programs, empty, strict=True)]
            damaged = [p._replace(rows=some) for p, some in zip(call.programs, rows, strict=True)]
            with pytest.raises(ProgramError, match=r"before it knows|deadlock|never posts"):
                prove_calls([call._replace(programs=damaged)] * 2)
            tried += 1
    assert tried
