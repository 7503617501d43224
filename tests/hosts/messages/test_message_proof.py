"""The proof of message programs is checked: with programs of which something is left out or moved."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.each import each
from tests.support.message_runs import Layout, run_messages
from unisono.base.errors import ProgramError
from unisono.hosts.messages import MessageProgram, lower, message_memory, prove_messages
from unisono.hosts.messages.message_program import FINAL, KEPT, MOVE, POST, SEND, TAKE
from unisono.schedule import ADD, COPY, Schedule, T, Y, send, trace
from unisono.schedule.algorithms import CATALOGUE

pytestmark = pytest.mark.quick

TABLES = [
    ("all_reduce.circulant", 2),
    ("all_reduce.circulant", 3),
    ("all_reduce.recursive_doubling", 3),
    ("all_reduce.ring", 3),
    ("all_reduce.one_shot", 3),
    ("all_gather.circulant", 4),
    ("reduce_scatter.circulant", 4),
    ("broadcast.binomial", 4),
    ("broadcast.circulant", 3),
    ("reduce.binomial", 4),
    ("scatter.binomial", 4),
    ("gather.linear", 3),
    ("all_to_all.bruck", 3),
    ("all_to_all.direct", 3),
    ("barrier.dissemination", 3),
    ("exscan.hillis_steele", 4),
]


def refused(schedule: Schedule, programs: tuple[MessageProgram, ...]) -> bool:
    try:
        prove_messages(schedule, programs)
    except ProgramError:
        return True
    return False


def changed(programs: tuple[MessageProgram, ...], rank: int, **what: object) -> tuple[MessageProgram, ...]:
    return tuple(one._replace(**what) if r == rank else one for r, one in enumerate(programs))


def swapped(programs: tuple[MessageProgram, ...]) -> Iterator[tuple[MessageProgram, ...]]:
    """Each row a row later."""
    for rank, program in enumerate(programs):
        rows = program.rows
        for k in range(len(rows) - 1):
            yield changed(programs, rank, rows=(*rows[:k], rows[k + 1], rows[k], *rows[k + 2 :]))


@each("name, p", TABLES)
def test_no_row_can_be_left_out(name: str, p: int) -> None:
    schedule = CATALOGUE[name].schedule(p)
    programs = lower(schedule)
    for rank, program in enumerate(programs):
        for k in range(len(program.rows)):
            less = (*program.rows[:k], *program.rows[k + 1 :])
            assert refused(schedule, changed(programs, rank, rows=less)), (rank, program.rows[k])


@each("name, p", TABLES)
def test_no_row_can_be_done_twice(name: str, p: int) -> None:
    schedule = CATALOGUE[name].schedule(p)
    programs = lower(schedule)
    for rank, program in enumerate(programs):
        for k, (kind, number) in enumerate(program.rows):
            copies = kind == MOVE and len(program.writings[number].sources) == 1
            if not copies:  # to copy once more changes nothing
                more = (*program.rows[:k], program.rows[k], *program.rows[k:])
                assert refused(schedule, changed(programs, rank, rows=more)) or schedule.collective == "barrier"


@each("name, p", TABLES)
def test_rows_at_another_time_are_refused(name: str, p: int) -> None:
    """A TAKE behind the MOVE that needs it; a SEND before the MOVE that made its value."""
    schedule = CATALOGUE[name].schedule(p)
    programs = lower(schedule)
    tried = 0
    for rank, program in enumerate(programs):
        made: dict[object, int] = {}
        for k, (kind, number) in enumerate(program.rows):
            rest = [*program.rows[:k], *program.rows[k + 1 :]]
            if kind == MOVE:
                made[program.writings[number].place] = k
            elif kind == SEND:
                earlier = [made[place] for place in program.messages[number].places if place in made]
                if earlier:
                    rest.insert(max(earlier), program.rows[k])
                    assert refused(schedule, changed(programs, rank, rows=tuple(rest)))
                    tried += 1
            elif kind == TAKE:
                needs = [
                    at
                    for at, (other, writing) in enumerate(program.rows)
                    if other == MOVE and any(s[0] == number and len(s) == 2 for s in program.writings[writing].sources)
                ]
                rest.insert(needs[0], program.rows[k])
                assert refused(schedule, changed(programs, rank, rows=tuple(rest)))
                tried += 1
    assert tried


@each("name, p", TABLES)
def test_accepted_programs_are_right(name: str, p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that change places with the next: refused, or harmless."""
    monkeypatch.setattr(message_memory, "LARGE_BYTES", 16)  # so that all that may do without a copy does
    schedule = CATALOGUE[name].schedule(p)
    accepted = [programs for programs in swapped(lower(schedule)) if not refused(schedule, programs)]
    for seed, programs in enumerate(accepted):
        run_messages(schedule, programs, 13, seed, layout=Layout.of(schedule, seed))
    assert accepted


def test_needed_copies_cannot_be_left_out() -> None:
    schedule = CATALOGUE["all_reduce.recursive_doubling"].schedule(4)
    programs = lower(schedule)
    flipped = 0
    for rank, program in enumerate(programs):
        for number, message in enumerate(program.messages):
            if not message.direct:
                messages = (*program.messages[:number], message._replace(direct=True), *program.messages[number + 1 :])
                assert refused(schedule, changed(programs, rank, messages=messages)), (rank, message)
                flipped += 1
    assert flipped


def test_early_receive_is_refused() -> None:
    schedule = CATALOGUE["all_reduce.ring"].schedule(3)
    programs = lower(schedule)
    early = 0
    for rank, program in enumerate(programs):
        for k, (kind, number) in enumerate(program.rows):
            if kind == POST and program.messages[number].direct:
                rows = (program.rows[k], *program.rows[:k], *program.rows[k + 1 :])
                assert refused(schedule, changed(programs, rank, rows=rows))
                early += 1
    assert early


def test_early_result_is_refused() -> None:
    schedule = CATALOGUE["broadcast.linear"].schedule(3)
    programs = lower(schedule)
    program = programs[1]
    final = program.writings[0].place._replace(where=2)
    messages = (program.messages[0]._replace(places=(final,)),)
    mutant = changed(programs, 1, messages=messages, writings=(program.writings[0]._replace(place=final),))
    with pytest.raises(ProgramError, match="while ranks may be in another call"):
        prove_messages(schedule, mutant)


def own(generator: Callable[[Any, int], Iterator[Any]]) -> Schedule:
    """A table of three ranks for all_reduce, with its result in buffer Y."""
    return trace(generator, 3, 1, "all_reduce", result=Y)


def inputs_sent_late(r: Any, p: int) -> Iterator[Any]:
    yield [send(q, r, 0, dbuf=Y, op=ADD if q else COPY) for q in range(p)]
    yield send(r, (r + 1) % p, 0, dbuf=T)


def sums_at_rank_0(r: Any, p: int) -> Iterator[Any]:
    yield [send(q, 0, 0, dbuf=Y, op=ADD if q else COPY) for q in range(p)]
    yield [send(0, q, 0, sbuf=Y, dbuf=Y) for q in range(1, p)]


@pytest.mark.parametrize("table", [inputs_sent_late, sums_at_rank_0])
def test_result_may_overwrite_the_input(table: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(message_memory, "LARGE_BYTES", 16)
    schedule = own(table)
    programs = lower(schedule)
    prove_messages(schedule, programs)
    for seed in range(60):
        run_messages(schedule, programs, 13, seed, layout=Layout.of(schedule, seed))


def test_input_read_later_is_not_overwritten() -> None:
    schedule = own(inputs_sent_late)
    programs = lower(schedule)
    program = programs[1]
    assert [writing.place.where for writing in program.writings if writing.place.buffer == Y] == [KEPT]
    early = tuple(
        writing._replace(place=writing.place._replace(where=FINAL)) if writing.place.buffer == Y else writing
        for writing in program.writings
    )
    with pytest.raises(ProgramError, match="may be written there"):
        prove_messages(schedule, changed(programs, 1, writings=early))


def test_a_message_of_another_size_is_refused() -> None:
    schedule = CATALOGUE["all_gather.direct"].schedule(2)
    programs = lower(schedule)
    message = programs[0].messages[0]
    messages = (message._replace(places=message.places * 2), *programs[0].messages[1:])
    with pytest.raises(ProgramError, match="another size"):
        prove_messages(schedule, changed(programs, 0, messages=messages))
