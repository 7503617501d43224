"""Every compiled program is proved free of races, of deadlock and of wrong values; each small damage must show.

Worlds are a number of ranks of one host, or hosts, such as "2x2".
"""

import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product

import numpy as np
import pytest

from unisono.base.errors import AlgorithmError, ProgramError
from unisono.engine.compile import program_proof
from unisono.engine.compile.compile_schedule import compile_schedule
from unisono.engine.compile.program import STAGE, Lowering, Op, Program, RowWord
from unisono.engine.compile.program_proof import CompiledCall, prove_calls, prove_programs
from unisono.schedule import BLOCKED, ROOTED, Hosts, Schedule, send, trace
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import CORES, RAILED, spanning
from unisono.schedule.combine import pipeline

HOSTS = "2x1", "2x2", "3+1", "2x2:round_robin", "3x2"
MANY_ROWS = 200


def tables(world: int | str) -> Iterator[Schedule]:
    """Every table, for the first, a middle and the last root; over hosts also in two pieces, and by all rails."""
    if isinstance(world, int):
        for algorithm in CATALOGUE.values():
            if algorithm.allows(world):
                for root in sorted({0, world // 2, world - 1}) if algorithm.collective in ROOTED else [0]:
                    yield algorithm.schedule(world, root)
        return
    hosts = Hosts.parse(world)
    for kind in ("all_reduce", "broadcast", "reduce"):
        roots = {0, hosts.ranks - 1} if kind in ROOTED else {0}
        for core, rails, root in product(CORES[kind], {1, hosts.rails} if kind in RAILED else {1}, roots):
            table = spanning(kind, hosts, root, rails=rails, core=core, segments=2)
            yield from (table, pipeline(table, 2))


@cache
def calls(world: int | str) -> list[CompiledCall]:
    """A call of every table, lowered in every way: in place or not, on one host also with zero copy."""
    ways = [Lowering(*how) for how in product((False, True) if isinstance(world, int) else (False,), (False, True))]
    return [
        CompiledCall(table, compile_schedule(table, how), how)
        for table in tables(world)
        for how in ways
        if not (how.in_place and table.collective in BLOCKED)
    ]


def each_program(world: int | str) -> Iterator[tuple[CompiledCall, int, Program]]:
    """The programs of calls; on one host, of those to the last root whose programs are not very long."""
    for call in calls(world):
        short = sum(len(program.rows) for program in call.programs) <= MANY_ROWS
        last = call.schedule.root == call.schedule.ranks - 1 or call.schedule.collective not in ROOTED
        if isinstance(world, str) or (short and last):
            for rank, program in enumerate(call.programs):
                yield call, rank, program


@pytest.mark.quick
@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("ranks", range(1, 9))
def test_every_program_of_the_catalogue_is_proved(ranks: int) -> None:
    for call in calls(ranks):
        prove_programs(*call)
    assert {call.schedule.name for call in calls(ranks)} == {
        name for name, algorithm in CATALOGUE.items() if algorithm.allows(ranks)
    }


@pytest.mark.quick
@pytest.mark.parametrize("shape", HOSTS)
def test_programs_of_several_hosts_are_proved(shape: str) -> None:
    for call in calls(shape):
        prove_calls([call, call])
    some = calls(shape)[::5]
    prove_calls([*some, *reversed(some)])


@pytest.mark.parametrize("segments", [1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_programs_follow_each_other_in_any_order(ranks: int, segments: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # With one or three segments a call begins in another half of the staging area than the one before, with two not.
    monkeypatch.setattr(program_proof, "_SEGMENTS", segments)
    draw = random.Random(ranks * 10 + segments)
    for _ in range(25):
        prove_calls(draw.choices(calls(ranks), k=6))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_programs_of_other_lowerings_do_not_fit(ranks: int) -> None:
    staged, _, shared, _ = (call for call in calls(ranks) if call.schedule.name == "all_reduce.two_shot")
    assert why_rejected(staged, {0: shared.programs[0]})


def ping_pong(r, p, root):
    """Ranks 0 and 1 throw a chunk back and forth more often than there are steps."""
    for k in range(2 * 4096 + 1):
        yield send(k % 2, 1 - k % 2, 0)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("rounds", "chunks", "why"),
    [
        pytest.param(lambda r, p, root: [[send(0, 1, 0, to=1), send(0, 1, 1, to=0)]], 2, "sizes may differ", id="move"),
        pytest.param(lambda r, p, root: [send(1, 0, 0)], 1, "holds nothing", id="unwritten"),
        pytest.param(ping_pong, 1, "expected at most 4096", id="steps"),
    ],
)
def test_unfit_table_has_no_program(rounds: Callable[..., Iterator[list[object]]], chunks: int, why: str) -> None:
    table = trace(rounds, 2, chunks, "broadcast", root=0)
    with pytest.raises(AlgorithmError, match=why):
        compile_schedule(table, Lowering())


def why_rejected(call: CompiledCall, instead: dict[int, Program]) -> str:
    """Why two calls in which some ranks run other programs are rejected, or ""."""
    programs = [instead.get(rank, program) for rank, program in enumerate(call.programs)]
    try:
        prove_calls([call._replace(programs=programs)] * 2)
    except ProgramError as error:
        return str(error)
    return ""


Damaged = Iterator[tuple[int, Program]]


def rows_of(program: Program, *kinds: Op) -> list[int]:
    return np.flatnonzero(np.isin(program.rows[:, RowWord.OP], kinds)).tolist()


def slots(program: Program, rank: int, k: int, writes: bool) -> set[int]:
    """The staging slots of the rank that row k reads, or writes; a wait has none."""
    row = program.rows[k]
    if row[RowWord.OP] in (Op.SEND, Op.RECV):
        return {int(row[RowWord.SLOT])} if (row[RowWord.OP] == Op.RECV) == writes else set()
    first, nin, nout = row[[RowWord.FIRST_REF, RowWord.NIN, RowWord.NOUT]]
    used = slice(first + nin, first + nin + nout) if writes else slice(first, first + nin)
    refs = program.refs[used].tolist() if row[RowWord.OP] == Op.MOVE else []
    return {slot for where, owner, slot, _ in refs if (where, owner) == (STAGE, rank)}


def left_out(kind: Op, program: Program, _: int) -> Damaged:
    for k in rows_of(program, kind):
        yield k, program._replace(rows=np.delete(program.rows, k, axis=0))


def of_another_slot(program: Program, _: int) -> Damaged:
    for k in rows_of(program, Op.SEND, Op.RECV):
        if not program.rows[k, RowWord.EMPTY]:
            rows = program.rows.copy()
            rows[k, RowWord.SLOT] += 1
            yield k, program._replace(rows=rows)


def moved(program: Program, k: int, to: int) -> Program:
    """Row k moved in front of row `to`, or behind it if that comes later."""
    order = [row for row in range(len(program.rows)) if row != k]
    order.insert(to, k)
    return program._replace(rows=program.rows[order])


def sent_early(program: Program, rank: int) -> Damaged:
    """A SEND before the row that makes what leaves: the MOVE with the slot among its outputs, or the RECV."""
    for k in rows_of(program, Op.SEND):
        for j in range(k) if not program.rows[k, RowWord.EMPTY] else ():
            if program.rows[k, RowWord.SLOT] in slots(program, rank, j, writes=True):
                yield k, moved(program, k, j)


def taken_late(program: Program, rank: int) -> Damaged:
    """A RECV behind the first row that reads what has come."""
    for k in rows_of(program, Op.RECV):
        slot, later = program.rows[k, RowWord.SLOT], range(k + 1, len(program.rows))
        reads = [j for j in later if slot in slots(program, rank, j, writes=False)]
        if reads and not program.rows[k, RowWord.EMPTY]:
            yield k, moved(program, k, reads[0])


def posted_before_its_write(program: Program, _: int) -> Damaged:
    rows = program.rows
    for k in np.flatnonzero((rows[:, RowWord.OP] == Op.MOVE) & (rows[:, RowWord.POST] > 0)):
        early, late = rows[k].copy(), rows.copy()
        early[[RowWord.NIN, RowWord.NOUT]] = 0
        late[k, RowWord.POST] = 0
        yield k, program._replace(rows=np.insert(late, k, early, axis=0))


def without_an_output(program: Program, _: int) -> Damaged:
    for k in rows_of(program, Op.MOVE):
        row, refs = program.rows[k], program.refs.tolist()
        first, nin, nout = row[RowWord.FIRST_REF], row[RowWord.NIN], row[RowWord.NOUT]
        for output in range(nout):
            fewer = refs[first : first + nin + nout]
            del fewer[nin + output]
            rows = program.rows.copy()
            rows[k, RowWord.FIRST_REF], rows[k, RowWord.NOUT] = len(refs), nout - 1
            yield k, program._replace(rows=rows, refs=np.array(refs + fewer))


LEFT_OUT = {f"no {kind.name}": partial(left_out, kind) for kind in (Op.WAIT, Op.SEND, Op.RECV)}
DAMAGES: dict[str, Callable[[Program, int], Damaged]] = LEFT_OUT | {
    damage.__name__: damage
    for damage in (posted_before_its_write, without_an_output, of_another_slot, sent_early, taken_late)
}
LOCAL = "no WAIT", "posted_before_its_write", "without_an_output"
FAR = "no WAIT", "no SEND", "no RECV", "of_another_slot", "sent_early", "taken_late"
CASES = [*product((2, 3), LOCAL), *product(HOSTS[:4], FAR)]


@pytest.mark.parametrize(
    ("world", "damage"),
    [*CASES, *(pytest.param(4, damage, marks=pytest.mark.long) for damage in LOCAL)],
)
def test_no_damage_to_a_row_is_accepted(world: int | str, damage: str) -> None:
    tried = 0
    for call, rank, program in each_program(world):
        for row, damaged in DAMAGES[damage](program, rank):
            assert why_rejected(call, {rank: damaged}), (call.schedule.name, call.lowering, rank, row)
            tried += 1
    assert tried > (30 if isinstance(world, int) else 10) or (world, damage) == ("2x1", "no WAIT")


@pytest.mark.parametrize("shape", HOSTS[:4])
def test_rank_without_its_barrier_ends_too_early(shape: str) -> None:
    tried = 0
    for call in calls(shape):
        empty = [(p.rows[:, RowWord.EMPTY] * (p.rows[:, RowWord.OP] >= Op.SEND)).astype(bool) for p in call.programs]
        if any(rows.any() for rows in empty):
            damaged = [p._replace(rows=p.rows[~rows]) for p, rows in zip(call.programs, empty, strict=True)]
            why = why_rejected(call, dict(enumerate(damaged)))
            assert any(words in why for words in ("before it knows", "deadlock", "never posts")), why
            tried += 1
    assert tried
