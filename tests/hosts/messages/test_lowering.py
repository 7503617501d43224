"""Every table of the catalogue as messages: proved, and as long as it must be."""

import pytest

from tests.support.each import each
from unisono.base.errors import ProgramError
from unisono.hosts.messages import lower, prove_messages
from unisono.hosts.messages.lowering import after_round, at_start
from unisono.hosts.messages.message_program import FINAL, GIVEN, KEPT, MOVE, POST, SEND, TAKE, MessageProgram
from unisono.schedule import COPY, DST, ROUND, SRC, Schedule, X, Y, send, spread, trace
from unisono.schedule.algorithms import CATALOGUE

pytestmark = pytest.mark.quick

WAYS = sorted(CATALOGUE)
SYMMETRIC = {"all_gather", "all_reduce", "all_to_all", "barrier", "reduce_scatter"}


def rows(program: MessageProgram, kind: int) -> list[int]:
    return [number for this, number in program.rows if this == kind]


@each("name", WAYS)
def test_all_tables_are_proved(name: str) -> None:
    for p in range(2, 10):
        if CATALOGUE[name].allows(p):
            schedule = CATALOGUE[name].schedule(p, p - 1)
            programs = lower(schedule)
            prove_messages(schedule, programs)
            sent = sum(len(rows(program, SEND)) for program in programs)
            assert sent == sum(len(rows(program, TAKE)) for program in programs)
            assert sent == sum(len(rows(program, POST)) for program in programs)


def hears_all(schedule: Schedule) -> bool:
    """Does a rank that has done its part know that all ranks have begun, whatever the table's sizes?"""
    clock, rows = at_start(schedule.ranks), spread(schedule).rows
    for done, number in enumerate(sorted({*rows[:, ROUND].tolist()}), 1):
        pairs = rows[rows[:, ROUND] == number][:, [SRC, DST]].tolist()
        clock = after_round(clock, done, {(src, dst) for src, dst in pairs if src != dst})
    return bool(clock.all())


@each("name", WAYS)
def test_symmetric_tables_hear_of_all(name: str) -> None:
    assert hears_all(CATALOGUE[name].schedule(8)) == (CATALOGUE[name].collective in SYMMETRIC)


def test_rows_of_a_round_share_one_message() -> None:
    schedule = CATALOGUE["all_reduce.circulant"].schedule(8)
    for program in lower(schedule):
        assert [program.round_of(row) for row in program.rows if row.kind == SEND] == list(range(6))


def test_results_are_final_once_all_have_begun() -> None:
    for name in ("ring", "circulant", "recursive_doubling", "two_shot", "one_shot"):
        for program in lower(CATALOGUE[f"all_reduce.{name}"].schedule(4)):
            assert set(program.ends.values()) == {FINAL}
    root, *others = lower(CATALOGUE["broadcast.binomial"].schedule(4))
    assert not root.ends
    assert all(program.ends == {(X, 0): KEPT} for program in others)


def test_long_vectors_are_sent_without_copies() -> None:
    for program in lower(CATALOGUE["all_reduce.circulant"].schedule(4)):
        assert all(program.messages[number].direct for number in rows(program, SEND))
    for program in lower(CATALOGUE["all_reduce.recursive_doubling"].schedule(4)):
        assert not any(program.messages[number].direct for number in rows(program, SEND)[:-1])


def test_reads_follow_writes() -> None:
    (first, second) = lower(CATALOGUE["all_reduce.circulant"].schedule(2))
    assert [place.where for place in first.messages[0].places] == [GIVEN]
    assert [writing.place.where for writing in second.writings] == [FINAL, FINAL]
    assert [row.kind for row in first.rows] == [POST, SEND, POST, TAKE, MOVE, SEND, TAKE, MOVE]


def test_exchange_with_oneself_is_refused() -> None:
    def swap(r, p):
        yield [send(0, 0, 0, to=1, op=COPY), send(0, 0, 1, to=0, op=COPY)]

    with pytest.raises(ProgramError, match="exchanges chunks with itself in one round"):
        lower(trace(swap, 2, 2, "broadcast", name="swap"))


def test_writes_of_a_round_follow_its_reads() -> None:
    def shift(r, p):
        yield [send(0, 0, 0, to=1), send(0, 0, 1, to=2), send(1, 0, 0, to=0), send(0, 1, 2, dbuf=Y)]

    schedule = trace(shift, 2, 3, "broadcast", name="shift")
    programs = lower(schedule)
    prove_messages(schedule, programs)
    assert [writing.place.chunk for writing in programs[0].writings] == [2, 1, 0]
