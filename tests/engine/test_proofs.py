"""Every compiled program is proved free of races, of deadlock and of wrong values; each small damage must show."""

import random
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest

from tests.support.rehearsal import lowerings
from unisono.base.config import Config
from unisono.base.errors import AlgorithmError, ProgramError
from unisono.base.records import CallRecord
from unisono.engine.compile import program_proof
from unisono.engine.compile.compile_schedule import compile_schedule
from unisono.engine.compile.plan import Blocks, Plan, bind
from unisono.engine.compile.program import IN, OUT, Lowering, Op, PlanWord, Program, RowWord
from unisono.engine.compile.program_proof import CompiledCall, prove_calls, prove_programs
from unisono.schedule import ROOTED, Schedule, send, trace
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.choose import choose

pytestmark = pytest.mark.quick


@cache
def calls(ranks: int) -> list[CompiledCall]:
    """A call of every algorithm of the catalogue, for the first, a middle and the last root, lowered in every way."""
    found = []
    for algorithm in CATALOGUE.values():
        if not algorithm.allows(ranks):
            continue
        for root in sorted({0, ranks // 2, ranks - 1}) if algorithm.collective in ROOTED else [0]:
            schedule = algorithm.schedule(ranks, root)
            found += [CompiledCall(schedule, compile_schedule(schedule, how), how) for how in lowerings(schedule)]
    return found


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("ranks", range(1, 9))
def test_every_program_of_the_catalogue_is_proved(ranks: int) -> None:
    for call in calls(ranks):
        prove_programs(*call)
    assert {call.schedule.name for call in calls(ranks)} == {
        name for name, algorithm in CATALOGUE.items() if algorithm.allows(ranks)
    }


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
    mixed = CompiledCall(staged.schedule, [shared.programs[0], *staged.programs[1:]], staged.lowering)
    with pytest.raises(ProgramError):
        prove_calls([mixed, mixed])


def test_moves_within_a_block_have_no_program() -> None:
    table = trace(lambda r, p, root: [[send(0, 1, 0, to=1), send(0, 1, 1, to=0)]], 2, 2, "broadcast", root=0)
    with pytest.raises(AlgorithmError, match="sizes may differ"):
        compile_schedule(table, next(lowerings(table)))


def test_read_of_unwritten_chunk_has_no_program() -> None:
    table = trace(lambda r, p, root: [send(1, 0, 0)], 2, 1, "broadcast", root=0)
    with pytest.raises(AlgorithmError, match="holds nothing"):
        compile_schedule(table, next(lowerings(table)))


def test_steps_beyond_a_progress_word_are_refused() -> None:
    # Ranks 0 and 1 throw a chunk back and forth more often than there are steps.
    def ping_pong(r, p, root):  # type: ignore[no-untyped-def]
        for k in range(2 * 4096 + 1):
            yield send(k % 2, 1 - k % 2, 0)

    table: Schedule = trace(ping_pong, 2, 1, "broadcast", root=0)
    with pytest.raises(AlgorithmError, match="expected at most 4096"):
        compile_schedule(table, next(lowerings(table)))


MANY_ROWS = 200
SIZES = (2, 3, pytest.param(4, marks=pytest.mark.long))


@cache
def short_calls(ranks: int) -> list[CompiledCall]:
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
    for call in short_calls(ranks):
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


Damaged = Iterator[tuple[int, Program]]


def without_a_wait(program: Program) -> Damaged:
    for k in np.flatnonzero(program.rows[:, RowWord.OP] == Op.WAIT):
        yield k, program._replace(rows=np.delete(program.rows, k, axis=0))


def posted_before_its_write(program: Program) -> Damaged:
    rows = program.rows
    for k in np.flatnonzero((rows[:, RowWord.OP] == Op.MOVE) & (rows[:, RowWord.POST] > 0)):
        early, late = rows[k].copy(), rows.copy()
        early[[RowWord.NIN, RowWord.NOUT]] = 0
        late[k, RowWord.POST] = 0
        yield k, program._replace(rows=np.insert(late, k, early, axis=0))


def without_an_output(program: Program) -> Damaged:
    for k in np.flatnonzero(program.rows[:, RowWord.OP] == Op.MOVE):
        row, refs = program.rows[k], program.refs.tolist()
        first, nin, nout = row[RowWord.FIRST_REF], row[RowWord.NIN], row[RowWord.NOUT]
        for output in range(nout):
            fewer = refs[first : first + nin + nout]
            del fewer[nin + output]
            rows = program.rows.copy()
            rows[k, RowWord.FIRST_REF], rows[k, RowWord.NOUT] = len(refs), nout - 1
            yield k, program._replace(rows=rows, refs=np.array(refs + fewer))


@pytest.mark.parametrize("damage", [without_a_wait, posted_before_its_write, without_an_output])
@pytest.mark.parametrize("ranks", SIZES)
def test_no_damage_to_a_row_is_accepted(ranks: int, damage: Callable[[Program], Damaged]) -> None:
    tried = 0
    for call, rank, program in each_program(ranks):
        for row, damaged in damage(program):
            assert is_rejected(call, rank, damaged), say(call, rank, row)
            tried += 1
    assert tried > 30


@pytest.mark.parametrize("ranks", SIZES)
def test_independent_rows_may_swap(ranks: int) -> None:
    """What survives is provably harmless: two waits; a wait made earlier; two moves that touch different memory."""
    rejected = 0
    for call, rank, program in each_program(ranks):
        for k in range(len(program.rows) - 1):
            rows = program.rows.copy()
            rows[[k, k + 1]] = rows[[k + 1, k]]
            if is_rejected(call, rank, program._replace(rows=rows)):
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
    first, nin, nout = row[RowWord.FIRST_REF], row[RowWord.NIN], row[RowWord.NOUT]
    refs = [tuple(ref) for ref in program.refs[first : first + nin + nout].tolist()]
    if call.lowering.in_place:
        refs = [(IN, *ref[1:]) if ref[0] == OUT else ref for ref in refs]
    return set(refs[:nin]), set(refs[nin:])


@pytest.mark.parametrize("ranks", SIZES)
def test_forgotten_reader_of_staging_is_rejected(ranks: int) -> None:
    """The wait for a reader of a half is superfluous only where each segment waits for that reader by other ways."""
    rejected = 0
    for call, rank, program in each_program(ranks):
        for reader in program.readers:
            damaged = program._replace(readers=program.readers - {reader})
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


KI, MI = 1 << 10, 1 << 20


def plan(collective: str, ranks: int, count: int) -> Plan:
    """The plan of rank 0 for blocks of `count` numbers of 4 bytes in private tensors."""
    schedule = choose(collective, 64 * MI, ranks).algorithm.schedule(ranks, 0)
    program = compile_schedule(schedule, Lowering())[0]
    return bind(program, CallRecord(collective), Blocks(count, 4), (0, 0), 2 * MI, Config())


def segments(collective: str, ranks: int, nbytes: int) -> int:
    words = plan(collective, ranks, nbytes // 4).words
    return -(-int(words[PlanWord.TOTAL]) // int(words[PlanWord.CHUNK] * words[PlanWord.PER_BLOCK]))


@pytest.mark.parametrize(
    ("nbytes", "number"),
    [(32 * KI, 1), (64 * KI, 2), (128 * KI, 2), (256 * KI, 2), (512 * KI, 4), (MI, 8), (4 * MI, 8), (16 * MI, 32)],
)
def test_readers_of_one_rank_get_short_segments(nbytes: int, number: int) -> None:
    assert segments("broadcast", 2, nbytes) == number
    assert segments("broadcast", 4, nbytes) == number
    assert segments("scatter", 2, nbytes) == number


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all", "reduce_scatter"])
def test_staging_on_all_ranks_keeps_segments_long(collective: str) -> None:
    assert segments(collective, 2, MI) <= 4
    assert segments(collective, 2, 128 * KI) == 1
