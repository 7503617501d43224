"""Each place where a process publishes and another looks, on a processor that keeps no order: all that may be seen.

The functions of the code run here themselves, on memory that shows readers every value that they may see
(`tests.support.weak_memory`). Mutants leave out the order of the writer, or that of the reader: each must show a result
that is forbidden. Those who sleep are in test_weak_sleepers.py.
"""

from ctypes import c_int64
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.support.weak_memory import (
    CONTROL,
    CURSORS,
    DATA,
    FLAGS,
    PAIRS,
    RING,
    STAGE,
    STATES,
    TARGET,
    Memory,
    Page,
    Rank,
    Scene,
    as_python,
    copied,
    nothing,
    outcomes,
    pass_gate,
    published,
    put_words,
    set_state,
)
from unisono.base.records import CallRecord, DepartureKind, GivenUp, Proposal, Wait
from unisono.engine import memory_order
from unisono.engine.compile.program import DONE, STEP_BITS, LineWord, StateWord
from unisono.engine.kernels import interpret, ring, waiting
from unisono.engine.kernels.ring_buffer import CAPACITY, CursorWord, HeadWord
from unisono.engine.logs.plan_registry import PLAN_REGISTRY_BYTES, GroupNote, PlanRegistry
from unisono.engine.logs.rank_logs import CallLog, log_bytes
from unisono.engine.memory.arena import RegionTable
from unisono.engine.memory.board import BOARD_BYTES, LINE, PAGE, Board
from unisono.engine.memory.sub_arena import SubArena
from unisono.hosts.sentinel.regions import Regions
from unisono.hosts.span import Span

pytestmark = pytest.mark.usefixtures("weak")

BEGIN = 1 << 20
"""Where the pages of a scene are: the control line of a rank, its board, and others."""
SIGNED = {LineWord.SIGNATURE + 1: 77, LineWord.NUMBER + 1: 1}  # of a control line in call 1
KEY = b"k" * 16
CALL = CallRecord("c")
WAITS = [Wait(f"g{k}", f"c{k}", (k,)) for k in range(2)]
PROPOSALS = [Proposal(frozenset({k}), ballot=k, voted=k, choice=frozenset({k})) for k in range(3)]
GAVE_UP = [GivenUp(), GivenUp(7, reason="old"), GivenUp(8, reason="new")]
GROUPS = [GroupNote(name, 4096, 0, 2, "", 0, number) for number, name in enumerate("ab", 1)]


def board(memory: Memory, number: int = 0) -> Board:
    return Board(Page(memory, BEGIN + PAGE + number * BOARD_BYTES, BOARD_BYTES))


def table(memory: Memory) -> RegionTable:
    return RegionTable(Page(memory, BEGIN, 128))


def sees_signature(memory: Memory) -> bool:
    seen = Rank(memory, BEGIN)
    return seen.entered(0) < 1 or seen.signature(0, 1) == 76


class News:
    """A count of urgent news."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    value = property(lambda self: self._memory.read(DATA), lambda self, value: self._memory.write(DATA, value))


class Sentinel(Regions):
    """The memory of one rank, as the sentinel of its host has it."""

    def __init__(self, memory: Memory) -> None:
        page: Any = Page(memory, BEGIN, PAGE + BOARD_BYTES)
        self._bytes, self._start, self._memory, self._news = PAGE + BOARD_BYTES, 0, page, News(memory)  # type: ignore[assignment]
        self._regions = {}
        self._world = self._members(0, 1)
        self.add(0, 0, 1)


def image() -> bytes:
    """A rank that is in call 1, and has gone."""
    line, page = bytearray(LINE), bytearray(BOARD_BYTES)
    Board(memoryview(page)).set_call(1, CALL)
    Board(memoryview(page)).let_go = 1
    Board(memoryview(page)).set_gone(DepartureKind.DIED, "gone")
    for word, value in SIGNED.items():
        memoryview(line).cast("Q")[word] = value
    return bytes(line + page)


def is_a_rank(line: Any, of: Board, last: CallRecord | None = None) -> bool:
    """What a board says is there when the call is, and the last call when the rank has gone."""
    gone = of.gone is not None
    if line[LineWord.NUMBER + 1] != 1:
        return not gone
    memory_order.order()
    return line[LineWord.SIGNATURE + 1] & ~3 == 76 and (of.let_go, of.call(1)) == (1, last)


def enter_call_and_leave(memory: Memory) -> None:
    board(memory).let_go = 1  # one word: a call record has too many to try all orders
    pass_gate(memory, 0, 1, BEGIN)
    board(memory).set_gone(DepartureKind.DIED, "gone")


def reads_a_rank(memory: Memory) -> bool:
    seen = Sentinel(memory).read(0, 0)
    return is_a_rank(memoryview(seen[:LINE]).cast("Q"), Board(memoryview(seen[LINE:])))


def sees_departure(memory: Memory) -> bool:
    span: Any = SimpleNamespace(news=News(memory), seen=c_int64())
    return not Span.must_look(span) or board(memory).gone == (DepartureKind.DIED, "died")


def tells_and_looks(memory: Memory) -> bool:
    """Does one of two ranks see the other, where each tells what it proposes, then looks?"""
    board(memory, 1).set_proposal(PROPOSALS[1])
    return board(memory).proposal is not None


def calls(memory: Memory) -> CallLog:
    return CallLog(Page(memory, BEGIN, log_bytes(4)))


def call(memory: Memory, *numbers: int, ended: int = 0) -> None:
    """Enter calls of these numbers, and leave one of them."""
    for number in numbers:
        calls(memory).enter(number, 100 + number, 10 * number)
    calls(memory).leave(ended, 10 * ended + 5)


def call_by_kernel(memory: Memory) -> None:
    put_words(memory, STATES, {StateWord.LOG: BEGIN, StateWord.LOG_MASK: 3})
    for number in (5, 6, 7):
        put_words(memory, STATES, {StateWord.CALL: number})
        as_python(interpret.log_entry, memory, cycles=lambda number=number: 10 * number)(100 + number, STATES)


def end_by_kernel(memory: Memory) -> None:
    as_python(interpret.log_end, memory, cycles=lambda: 75)(STATES)


def are_calls(memory: Memory) -> bool:
    return all(
        (one.note, one.entered) == (100 + one.number, 10 * one.number)
        and one.left in (0, 75 * (one.number == 7))
        and one.background <= (one.number == 7)
        for one in calls(memory).read()
    )


def registry(memory: Memory) -> PlanRegistry:
    return PlanRegistry(Page(memory, BEGIN, PLAN_REGISTRY_BYTES))


def note(memory: Memory) -> None:
    """Write a note on a group again, and then another one in its place."""
    made = registry(memory)
    made.set_group(1, GROUPS[0])
    made.remove_group(1)
    made.set_group(1, GROUPS[1])


# Kernels


def set_cursor(memory: Memory, side: int, capacity: int = 4096, nbytes: int = 8) -> int:
    memory.write(RING + CAPACITY, capacity)
    words: dict[int, int] = {CursorWord.RING: RING, CursorWord.DONE: -1}
    if not side:  # it sends this, of the words 7, 8, ...
        words[CursorWord.HEADER + HeadWord.NBYTES] = nbytes
        put_words(memory, DATA, {k: 7 + k for k in range(nbytes // 8)})
    return put_words(memory, CURSORS + (side << 20), words)


def sees_gate(memory: Memory) -> bool:
    addresses = STATES + (1 << 30) + (3 << 20)
    seen = pass_gate(memory, 1) == DONE
    return not seen or (memory.read(addresses), memory.read(addresses + 8)) == (1000, 2000)


def post(memory: Memory) -> None:
    memory.write(DATA, 1)
    as_python(waiting.publish_and_wake, memory)(CONTROL + 8 * LineWord.PROGRESS, 5, 0)


def sees_post(memory: Memory) -> bool:
    state = set_state(memory, 1)
    return not as_python(interpret._progress, memory)(CONTROL, 0, 5, state) or memory.read(DATA) == 1


def sees_change(memory: Memory) -> bool:
    changed = as_python(waiting.has_changed, memory)(CONTROL + 8 * LineWord.PROGRESS, 5, 0, 0)
    return not changed or memory.read(DATA) == 1


def offer(memory: Memory) -> None:
    """Make a ring, then say where it is."""
    memory.write(RING + CAPACITY, 4096)
    as_python(waiting.publish_and_wake, memory)(PAIRS + 16, RING, 0)


def accepts(memory: Memory) -> bool:
    put_words(memory, PAIRS, {k: PAIRS + 16 + 8 * k for k in range(2)})
    return not as_python(waiting.poll, memory)(PAIRS, 1, TARGET) or memory.read(RING + CAPACITY) == 4096


def send(memory: Memory) -> None:
    assert as_python(ring.write, memory)(set_cursor(memory, 0), DATA) == 1


def receives(memory: Memory) -> bool:
    cursor = set_cursor(memory, 1)
    if not as_python(ring.read_header, memory)(cursor):
        return True
    return as_python(ring.read_payload, memory)(cursor, TARGET) == 1 and memory.read(TARGET) == 7


def send_whole(memory: Memory) -> None:
    assert as_python(ring.write_whole, memory)(set_cursor(memory, 0), DATA, 5) == 1


def receives_whole(memory: Memory) -> bool:
    cursor = set_cursor(memory, 1)
    done = as_python(ring.read_whole, memory)(cursor, TARGET, 0, 8, 5)
    return memory.read(TARGET) == 7 if done else memory.read(cursor + 8 * CursorWord.POSITION) == 0


def send_pieces(memory: Memory) -> None:
    """Publish the words of a frame one by one."""
    assert as_python(ring.write, memory, PIECE_BYTES=8)(set_cursor(memory, 0, nbytes=16), DATA) == 1


def receives_pieces(memory: Memory) -> bool:
    """Take the words that are there, the second one perhaps after a second look."""
    cursor = set_cursor(memory, 1)
    taken = as_python(ring.read_whole, memory)(cursor, TARGET, 0, 16, 0)
    done = memory.read(cursor + 8 * CursorWord.DONE) if taken == 2 else 16 * taken
    return all(memory.read(TARGET + 8 * k) == 7 + k for k in range(done // 8))


def leave(memory: Memory) -> None:
    """Give the call up, then overwrite the tensor that peers may still read."""
    memory.release(CONTROL + 8 * (LineWord.NUMBER + 1), 1)
    Rank(memory, CONTROL).sign_off(inline=False)
    memory.write(DATA, 9)


def sees_leaver(memory: Memory) -> bool:
    value = memory.read(DATA)
    return as_python(interpret._no_rank_has_left, memory)(CONTROL, 1, 77, 1) != DONE or value == 0


# What a rank has copied before others may overwrite it


def uses_it(memory: Memory) -> bool:
    """Does a member use the memory of its group, so that it looks for it no more?"""
    of = SimpleNamespace(control=lambda _: CONTROL, words=lambda at, _: Page(memory, at, LINE).cast("Q"))
    return SubArena.used_by(of, 0)


def finds_and_joins(memory: Memory) -> None:
    memory.copy_late(TARGET, DATA, 8)
    assert table(memory).find(KEY) == 4096
    Rank(memory, CONTROL).join()


def fill_ring(memory: Memory) -> None:
    """The only message for which there is room."""
    send(memory)
    memory.write(RING + CAPACITY, 64)


def read_of_ring(memory: Memory) -> None:
    cursor = set_cursor(memory, 1, 64)
    assert as_python(ring.read_header, memory)(cursor) == 1
    assert as_python(ring.read_payload, memory, memcpy=memory.copy_late)(cursor, TARGET) == 1


def read_of_whole_frame(memory: Memory) -> None:
    assert as_python(ring.read_whole, memory, memcpy=memory.copy_late)(set_cursor(memory, 1, 64), TARGET, 0, 8, 0) == 1


def write_ring_again(memory: Memory) -> None:
    memory.write(DATA, 9)
    as_python(ring.write, memory)(CURSORS, DATA)


def read_of_stage(memory: Memory) -> None:
    memory.copy_late(TARGET, STAGE, 8)
    as_python(waiting.publish_and_wake, memory)(CONTROL + 128 + 8 * LineWord.PROGRESS, 1 << STEP_BITS, 0)


def write_stage_again(memory: Memory) -> None:
    """Rank 0 writes to the half of segment 2 what rank 1 has read in segment 0."""
    state = put_words(memory, set_state(memory, 0), {StateWord.READERS_0: FLAGS})
    memory.write(FLAGS + 8, 1)
    if as_python(interpret._readers_are_past, memory)(CONTROL, 2, 2, state) == DONE:
        memory.write(STAGE, 9)


class Case(NamedTuple):
    """A scene, and the orders that it needs, of the writer and of the reader."""

    scene: Scene
    writer: str = "order release"
    reader: str = "order acquire"


FOUR_CALLS = lambda m: call(m, 1, 2, 3, 4)  # noqa: E731  a row's
SCENES = {
    "record": Case(published(lambda m: board(m).set_gave_up(GAVE_UP[1]), lambda m: board(m).set_gave_up(GAVE_UP[2]),
        lambda m: board(m).gave_up in GAVE_UP)),
    "image of a board": Case(published(lambda m: board(m).set_gave_up(GAVE_UP[1]),
        lambda m: board(m).set_gave_up(GAVE_UP[2]), lambda m: Board(memoryview(board(m).image())).gave_up in GAVE_UP)),
    "process": Case(published(nothing, lambda m: board(m).set_process(5, 9),
        lambda m: board(m).pid != 5 or board(m).ticks == 9)),
    "proposal": Case(published(lambda m: board(m).set_proposal(PROPOSALS[0]),
        lambda m: [board(m).set_proposal(one) for one in PROPOSALS[1:]], lambda m: board(m).proposal in PROPOSALS)),
    "two proposals": Case(published(nothing, lambda m: board(m).set_proposal(PROPOSALS[0]), tells_and_looks,
        lambda m: board(m, 1).proposal is not None), "fence", "fence"),
    "announced memory": Case(published(nothing, lambda m: [m.write(DATA, 1), table(m).write(1, KEY, 4096)],
        lambda m: table(m).find(KEY) is None or m.read(DATA) == 1)),
    "wait": Case(published(lambda m: board(m).set_wait(WAITS[0]), lambda m: board(m).set_wait(WAITS[1]),
        lambda m: board(m).wait in [*WAITS, None])),
    "signature": Case(published(nothing, lambda m: pass_gate(m, 0, 1, BEGIN), sees_signature)),
    "copy of a rank": Case(published(nothing, lambda m: Sentinel(m).write(0, 0, image(), keep_gone=False),
        lambda m: is_a_rank(Page(m, BEGIN, LINE).cast("Q"), board(m), CALL))),
    "image of a rank": Case(published(nothing, enter_call_and_leave, reads_a_rank)),
    "news": Case(published(nothing, lambda m: Sentinel(m).depart(0, DepartureKind.DIED, "died"), sees_departure)),
    "calls": Case(published(FOUR_CALLS, lambda m: call(m, 5, 6, 7, ended=7), are_calls)),
    "calls of a kernel": Case(published(FOUR_CALLS, lambda m: [call_by_kernel(m), end_by_kernel(m)], are_calls)),
    "call that an error ends": Case(published(FOUR_CALLS, lambda m: [call_by_kernel(m), calls(m).leave(7, 75)],
        are_calls), "order"),
    "call of a background thread": Case(published(FOUR_CALLS, lambda m: [call_by_kernel(m),
        calls(m).mark_background(7)], are_calls), "order"),
    "note": Case(published(lambda m: registry(m).set_group(1, GROUPS[0]), note,
        lambda m: {*registry(m).groups()} <= {*GROUPS})),
    "gate": Case(published(nothing, lambda m: pass_gate(m, 0), sees_gate)),
    "progress": Case(published(nothing, post, sees_post)),
    "wait in a kernel": Case(published(nothing, post, sees_change)),
    "mail": Case(published(nothing, offer, accepts)),
    "ring": Case(published(nothing, send, receives)),
    "whole frame": Case(published(nothing, send_whole, receives_whole)),
    "pieces": Case(published(nothing, send_pieces, receives_pieces)),
    "leaver": Case(published(lambda m: put_words(m, CONTROL, SIGNED), leave, sees_leaver), "order", "acquire_fence"),
    "copy of an entry that is found": Case(copied(lambda m: table(m).write(1, KEY, 4096), finds_and_joins,
        lambda m: uses_it(m) and m.write(DATA, 9)), reader=""),
    "copy of a ring": Case(copied(fill_ring, read_of_ring, write_ring_again), reader=""),
    "copy of a whole frame": Case(copied(fill_ring, read_of_whole_frame, write_ring_again), reader=""),
    "copy of a staging half": Case(copied(nothing, read_of_stage, write_stage_again), reader=""),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_readers_see_what_was_published(name: str) -> None:
    results = list(outcomes(SCENES[name].scene))
    assert len(results) > 1
    assert all(results)


MUTANTS = [(name, who) for name in SCENES for who in ("writer", "reader") if getattr(SCENES[name], who)]


@pytest.mark.parametrize(("name", "who"), MUTANTS)
def test_without_an_order_they_do_not(name: str, who: str) -> None:
    assert not all(outcomes(SCENES[name].scene, {who: getattr(SCENES[name], who)}))
