"""Each place where a process publishes and another looks, on a processor that keeps no order: all that may be seen.

The functions of the code run here themselves, on memory that shows readers every value that they may see
(`tests.support.weak_memory`). Mutants leave out the order of the writer, or that of the reader: each must show a result
that is forbidden. The model does not move writes in front of earlier reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from tests.support.weak_memory import Memory, Page, Process, Scene, Weak, allowed, explore
from unisono.base.linux import FUTEX
from unisono.base.records import DepartureKind, Proposal, Wait
from unisono.engine import memory_order
from unisono.engine.compile.program import DONE, LineWord, PlanWord, StateWord
from unisono.engine.host import Host
from unisono.engine.kernels import interpret, ring, waiting
from unisono.engine.kernels.ring_buffer import CAPACITY, CURSOR_WORDS, CursorWord, HeaderWord
from unisono.engine.logs.plan_registry import PlanRegistry
from unisono.engine.logs.rank_logs import CallLog, MessageLog, log_bytes, message_log_bytes
from unisono.engine.memory import board
from unisono.engine.memory.arena import RegionTable
from unisono.engine.memory.board import BOARD_BYTES, WHEREABOUTS_BYTES, Board, Topic, WaitStatus
from unisono.hosts.sentinel.regions import Regions
from unisono.hosts.span import Span

BEGIN, DATA, GONE = 1 << 20, 1 << 30, 64
"""Where the pages of a scene begin, a word of memory that a page is about, and where a board has its departure."""


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> Weak:
    """Code that runs on a processor that keeps no order. Sets of ranks are short: fewer words, fewer choices."""
    made = Weak()
    monkeypatch.setattr(memory_order, "KEEPS_ORDER", False)
    monkeypatch.setattr(memory_order, "fence", made.order)
    monkeypatch.setattr(board, "fence", made.fence)
    monkeypatch.setattr(board, "_SET_WORDS", 1)
    monkeypatch.setattr(board, "_PLACE_WORDS", 5)
    return made


def on(memory: Memory) -> Board:
    return Board(Page(memory, BEGIN, BOARD_BYTES))  # type: ignore[arg-type]


def log(memory: Memory) -> CallLog:
    return CallLog(Page(memory, BEGIN, log_bytes(4)))  # type: ignore[arg-type]


def messages(memory: Memory, *numbers: int) -> MessageLog:
    """A log of 4 messages, after it has logged those of these numbers."""
    made = MessageLog(Page(memory, BEGIN, message_log_bytes(4)))  # type: ignore[arg-type]
    made._numbers = itertools.count(numbers[0] if numbers else 1)
    for number in numbers:
        assert made.write(0, 100 + number, 0, 0, 200 + number, 0, 0) == number
    return made


def wait_status(memory: Memory) -> WaitStatus:
    return WaitStatus(Page(memory, BEGIN, WHEREABOUTS_BYTES))  # type: ignore[arg-type]


def table(memory: Memory) -> RegionTable:
    return RegionTable(Page(memory, BEGIN, 64))  # type: ignore[arg-type]


def registry(memory: Memory) -> PlanRegistry:
    return PlanRegistry(Page(memory, BEGIN, 1024))  # type: ignore[arg-type]


def nothing(memory: Memory) -> None:
    pass


def enter(memory: Memory, *numbers: int) -> None:
    for number in numbers:
        log(memory).enter(number, 100 + number, 10 * number)


def is_a_call(call: Any) -> bool:
    return bool((call.note, call.entered) == (100 + call.number, 10 * call.number))


def is_a_note(memory: Memory) -> bool:
    number, nbytes, data = registry(memory)._read(1)
    return (number, nbytes, data) in [(7, 70, b"old"), (8, 80, b"new")] or not number


WAITS = [Wait(f"g{k}", f"c{k}", (k,)) for k in range(2)]
PROPOSALS = [Proposal(frozenset({k}), ballot=k, voted=k, choice=frozenset({k})) for k in range(3)]
KEY = b"k" * 16


def image_is_whole(memory: Memory) -> bool:
    """Does a copy of the board for another host have a record of one moment?"""
    record = Board(memoryview(on(memory).image()))._latest(GONE)
    return record in [(7, b"old"), (8, b"new")] or not record[0]


def host(memory: Memory) -> Any:
    """The words of a host over which calls begin; the number of the call is 1."""
    line = Page(memory, BEGIN, 128).cast("Q")

    def publish(address: int, word: int, _: int) -> None:
        memory_order.order()
        memory.write(address, word)

    made = SimpleNamespace(
        words={int(StateWord.CALL): 1}, log=SimpleNamespace(enter=lambda *_: None), _cycles=lambda: 0, rank=0,
        _lines=[line], _line=BEGIN, _tags=[[]], _publish=publish, _asleep=0, _state={StateWord.SEGMENT: 0},
        call_number=1,
    )  # fmt: skip
    made._entries = lambda rank: Host._entries(made, rank)
    return made


def sees_signature(memory: Memory) -> bool:
    seen = host(memory)
    return Host.entered(seen, 0) < 1 or Host.signature(seen, 0, 1) == 77


def news(memory: Memory) -> Any:
    class News:
        value = property(lambda _: memory.read(DATA), lambda _, value: memory.write(DATA, value))

    return News()


def depart(memory: Memory) -> None:
    regions: Any = SimpleNamespace(_news=news(memory), _world=[SimpleNamespace(board=on(memory))])
    regions.count_news = lambda: Regions.count_news(regions)
    Regions.depart(regions, 0, DepartureKind.DIED, "died")


def sees_departure(memory: Memory) -> bool:
    span: Any = SimpleNamespace(news=news(memory), seen=0)
    return not Span.must_look(span) or on(memory).gone == (DepartureKind.DIED, "died")


SCENES = {
    "record": Scene(
        lambda m: on(m)._write(64, 7, b"old"),
        lambda m: on(m)._write(64, 8, b"new"),
        lambda m: on(m)._read(64, 7) in [b"", b"old"] and on(m)._read(64, 8) in [b"", b"new"],
    ),
    "image of a board": Scene(
        lambda m: on(m)._write(GONE, 7, b"old"),
        lambda m: on(m)._write(GONE, 8, b"new"),
        image_is_whole,
    ),
    "process": Scene(
        nothing,
        lambda m: on(m).set_process(5, 9),
        lambda m: on(m).pid != 5 or on(m).ticks == 9,
    ),
    "proposal": Scene(
        lambda m: on(m).set_proposal(Topic.FAILURE, PROPOSALS[0]),
        lambda m: [on(m).set_proposal(Topic.FAILURE, one) for one in PROPOSALS[1:]],
        lambda m: on(m).proposal(Topic.FAILURE) in PROPOSALS,
    ),
    "growth": Scene(
        nothing,
        lambda m: on(m).set_growth(1, 4096),
        lambda m: on(m).growth(1) in {None, 4096},
    ),
    "lent memory": Scene(
        nothing,
        lambda m: [m.write(DATA, 1), on(m).set_region(0, 4096)],
        lambda m: on(m).region(0) is None or m.read(DATA) == 1,
    ),
    "announced memory": Scene(
        nothing,
        lambda m: [m.write(DATA, 1), table(m).write(1, KEY, 4096)],
        lambda m: table(m).find(KEY) is None or m.read(DATA) == 1,
    ),
    "memory that was let go": Scene(
        nothing,
        lambda m: [m.write(DATA, 1), on(m).set_let_go()],
        lambda m: not on(m).let_go or m.read(DATA) == 1,
    ),
    "wait": Scene(
        lambda m: wait_status(m).set_wait(WAITS[0]),
        lambda m: wait_status(m).set_wait(WAITS[1]),
        lambda m: wait_status(m).wait in [*WAITS, None],
    ),
    "note": Scene(
        lambda m: registry(m)._write(1, 7, b"old", 70),
        lambda m: registry(m)._write(1, 8, b"new", 80),
        is_a_note,
    ),
    "log of calls": Scene(
        lambda m: enter(m, 1, 2, 3, 4),
        lambda m: enter(m, 5, 6, 7),
        lambda m: all(map(is_a_call, log(m).read())),
    ),
    "log of messages": Scene(
        lambda m: messages(m, 1, 2, 3, 4),
        lambda m: messages(m, 5, 6),
        lambda m: all((one.tag, one.nbytes) == (100 + one.number, 200 + one.number) for one in messages(m).read()),
    ),
    "latest call": Scene(
        lambda m: enter(m, 1, 2, 3, 4),
        lambda m: enter(m, 5),
        lambda m: is_a_call(log(m).latest()),
    ),
    "signature": Scene(
        nothing,
        lambda m: Host.enter_call(host(m), SimpleNamespace(note=1, signature=77)),  # type: ignore[arg-type]
        sees_signature,
    ),
    "news": Scene(nothing, depart, sees_departure),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_a_reader_sees_what_was_published(weak: Weak, name: str) -> None:
    results = list(allowed(weak, SCENES[name]))
    assert len(results) > 1
    assert all(results)


@pytest.mark.parametrize("mutant", ["writer", "reader"])
@pytest.mark.parametrize("name", SCENES)
def test_without_an_order_it_does_not(weak: Weak, name: str, mutant: str) -> None:
    assert not all(allowed(weak, SCENES[name], mutant))


def both_are_blind(weak: Weak) -> Iterator[bool]:
    """Two ranks tell at the same time, then look: whether neither sees the other."""

    def run(choose: Callable[[int], int]) -> bool:
        weak.memory = memory = Memory(choose)
        ranks, boards = [Process(), Process()], [Page(memory, BEGIN << k, BOARD_BYTES) for k in range(2)]
        for k in range(2):
            memory.running = ranks[k]
            Board(boards[k]).set_proposal(Topic.FAILURE, PROPOSALS[k])  # type: ignore[arg-type]
        seen = []
        for k in range(2):
            memory.running = ranks[k]
            seen.append(Board(boards[1 - k]).proposal(Topic.FAILURE))  # type: ignore[arg-type]
        return seen == [None, None]

    return explore(run)


def test_of_two_ranks_that_tell_at_the_same_time_one_sees_the_other(weak: Weak) -> None:
    results = list(both_are_blind(weak))
    assert len(results) > 1
    assert not any(results)


def test_without_a_full_fence_both_may_be_blind(weak: Weak) -> None:
    weak.fences = False
    assert any(both_are_blind(weak))


# The kernels' source, as Python


def as_python(function: Any, memory: Memory, others: dict[str, Any]) -> Any:
    """A function of a kernel that works on this memory.

    others: other values of names, there and where it calls: functions, or names of what the memory does.
    """
    names = {
        "load": memory.read, "store": memory.write, "load_acquire": memory.acquire, "store_release": memory.release,
        "acquire_fence": memory.acquire_fence, "signal_fence": lambda: None, "load_half": lambda _: 0,
        "cycles": lambda: 1, "now_ns": lambda: 1, "_wait": lambda *_: 0,
        "memcpy": lambda to, source, count: [memory.write(to + k, memory.read(source + k)) for k in range(0, count, 8)],
    }  # fmt: skip
    names |= {name: getattr(memory, other) if isinstance(other, str) else other for name, other in others.items()}
    code = function.py_func
    called = {
        name: as_python(code.__globals__[name], memory, others)
        for name in code.__code__.co_names
        if name not in names and hasattr(code.__globals__.get(name), "py_func")
    }
    return FunctionType(code.__code__, {**code.__globals__, **called, **names})


STATES, PLAN, CONTROL, CURSORS, RING, TARGET = (n << 40 for n in range(1, 7))
NUMBER = CONTROL + 8 * LineWord.NUMBER + 8


def set_state(memory: Memory, me: int) -> int:
    """The state of rank `me` of 2, in call 1."""
    state = STATES + (me << 30)
    words = {
        StateWord.RANKS: 2, StateWord.ME: me, StateWord.CALL: 1, StateWord.CONTROL: CONTROL,
        StateWord.ADDRESSES: state + (1 << 20), StateWord.LOG: state + (2 << 20),
    }  # fmt: skip
    for word, value in words.items():
        memory.write(state + 8 * word, value)
    for word, value in ((PlanWord.SIGNATURE, 77), (PlanWord.SHARED, 99)):
        memory.write(PLAN + 8 * word, value)
    return state


def set_cursor(memory: Memory, side: int) -> int:
    cursor = CURSORS + (side << 20)
    assert CURSOR_WORDS < 1 << 17
    for word, value in ((CursorWord.RING, RING), (CursorWord.DONE, -1)):
        memory.write(cursor + 8 * word, value)
    memory.write(RING + CAPACITY, 4096)
    return cursor


def pass_gate(memory: Memory, me: int, others: dict[str, Any]) -> int:
    state = set_state(memory, me)
    status: int = as_python(interpret._gate, memory, others)(PLAN, 0, 1000 + me, 2000 + me, state)
    return status


def sees_gate(memory: Memory, others: dict[str, Any]) -> bool:
    state = STATES + (1 << 30)
    if pass_gate(memory, 1, others) != DONE:
        return True
    addresses = state + (1 << 20) + 16
    return (memory.read(addresses), memory.read(addresses + 8)) == (1000, 2000)


def post(memory: Memory, others: dict[str, Any]) -> None:
    memory.write(DATA, 1)
    as_python(interpret.publish_and_wake, memory, others)(CONTROL + 8 * LineWord.PROGRESS, 5, 0)


def sees_post(memory: Memory, others: dict[str, Any]) -> bool:
    state = set_state(memory, 1)
    return not as_python(interpret._progress, memory, others)(CONTROL, 0, 5, state) or memory.read(DATA) == 1


def send(memory: Memory, others: dict[str, Any]) -> None:
    cursor = set_cursor(memory, 0)
    memory.write(cursor + 8 * (CursorWord.HEADER + HeaderWord.NBYTES), 8)
    memory.write(DATA, 7)
    assert as_python(ring.write, memory, others)(cursor, DATA) == 1


def receives(memory: Memory, others: dict[str, Any]) -> bool:
    cursor = set_cursor(memory, 1)
    if not as_python(ring.read_header, memory, others)(cursor):
        return True
    done = as_python(ring.read_payload, memory, others)(cursor, TARGET)
    return done == 1 and memory.read(TARGET) == 7


def log_calls(memory: Memory, others: dict[str, Any]) -> None:
    state = set_state(memory, 0)
    memory.write(state + 8 * StateWord.LOG, BEGIN)
    memory.write(state + 8 * StateWord.LOG_MASK, 3)
    for number in (5, 6, 7):
        memory.write(state + 8 * StateWord.CALL, number)
        memory.write(PLAN + 8 * PlanWord.NOTE, 100 + number)
        as_python(interpret._log, memory, others)(PLAN, state)


def sees_log(memory: Memory, others: dict[str, Any]) -> bool:
    return all(call.note == 100 + call.number for call in log(memory).read())


def leave(memory: Memory, others: dict[str, Any]) -> None:
    """Give the call up, then overwrite the tensor that peers may still read."""
    memory.release(NUMBER, 1)
    gives_up = host(memory)
    gives_up._lines, gives_up._line = [Page(memory, CONTROL, 128).cast("Q")], CONTROL
    Host._sign_off(gives_up, tag=False, line=True)
    memory.write(DATA, 9)


def sees_leaver(memory: Memory, others: dict[str, Any]) -> bool:
    value = memory.read(DATA)
    signature = 77
    return as_python(interpret._no_rank_has_left, memory, others)(CONTROL, 1, signature, 1) != DONE or value == 0


def sign(memory: Memory) -> None:
    memory.write(NUMBER + 8 * (LineWord.SIGNATURE - LineWord.NUMBER), 77)
    memory.write(NUMBER, 1)


KERNEL_SCENES: dict[str, tuple[Callable[[Memory], object], Callable[..., object], Callable[..., bool]]] = {
    "gate": (nothing, lambda m, others: pass_gate(m, 0, others), sees_gate),
    "progress": (nothing, post, sees_post),
    "ring": (nothing, send, receives),
    "log of calls": (lambda m: enter(m, 1, 2, 3, 4), log_calls, sees_log),
    "a rank that leaves": (sign, leave, sees_leaver),
}
KERNEL_MUTANTS = [
    ("gate", {"store_release": "write"}, {}), ("gate", {}, {"load_acquire": "read"}),
    ("progress", {"store_release": "write"}, {}), ("progress", {}, {"load_acquire": "read"}),
    ("ring", {"store_release": "write"}, {}), ("ring", {}, {"load_acquire": "read"}),
    ("log of calls", {"store_release": "write"}, {}), ("a rank that leaves", {}, {"acquire_fence": "order_nothing"}),
]  # fmt: skip


def kernel_scene(name: str, writer: dict[str, Any], reader: dict[str, Any]) -> Scene:
    known, write, read = KERNEL_SCENES[name]
    return Scene(known, lambda m: write(m, writer), lambda m: read(m, reader))


@pytest.mark.parametrize("name", KERNEL_SCENES)
def test_a_kernel_sees_what_was_published(weak: Weak, name: str) -> None:
    results = list(allowed(weak, kernel_scene(name, {}, {})))
    assert len(results) > 1
    assert all(results)


@pytest.mark.parametrize(("name", "writer", "reader"), KERNEL_MUTANTS)
def test_a_kernel_without_an_order_does_not(
    weak: Weak, name: str, writer: dict[str, Any], reader: dict[str, Any]
) -> None:
    assert not all(allowed(weak, kernel_scene(name, writer, reader)))


def test_a_rank_that_leaves_orders_its_sign_off(weak: Weak) -> None:
    assert not all(allowed(weak, kernel_scene("a rank that leaves", {}, {}), "writer"))


FLAG = CONTROL + 8 * LineWord.ASLEEP


def sleeps_on(weak: Weak, moment: int, fenced: str) -> Iterator[bool]:
    """A rank goes to sleep while another writes: does it sleep on, because neither sees what the other has written?

    moment: when it does so. 0: before the writer stores its word; 1: between that and its look at the flag; 2: then.
    fenced: the processes in which the sleeper's `membarrier` puts a fence.
    """

    def run(choose: Callable[[int], int]) -> bool:
        weak.memory = memory = Memory(choose)
        writer, sleeper = Process(), Process()
        goal, asleep, woken = CONTROL + 8 * LineWord.PROGRESS, False, False

        def syscall(number: int, *_: int) -> None:
            nonlocal woken
            if number == FUTEX:
                woken = True
                return
            for process in {"all": [sleeper, writer, sleeper], "own": [sleeper], "none": []}[fenced]:
                memory.running = process
                memory.fence()
            memory.running = sleeper

        others = {"syscall": syscall, "load_half": memory.acquire, "store_half": memory.release}
        others["add_half"] = lambda at, count: memory.release(at, memory.acquire(at) + count)

        def sleep(now: int) -> None:
            nonlocal asleep
            if now == moment:
                memory.running = sleeper
                as_python(waiting.announce, memory, others)(FLAG)
                asleep = not as_python(waiting.has_changed, memory, others)(goal, 1, 0, 0)
            memory.running = writer

        sleep(0)
        as_python(waiting.publish_and_wake, memory, {**others, "signal_fence": lambda: sleep(1)})(goal, 1, FLAG)
        sleep(2)
        return asleep and not woken

    return explore(run)


def test_a_sleeper_sees_the_word_or_the_writer_sees_the_sleeper(weak: Weak) -> None:
    assert not any(result for moment in range(3) for result in sleeps_on(weak, moment, "all"))


@pytest.mark.parametrize("fenced", ["own", "none"])
def test_a_fence_of_fewer_processes_lets_it_sleep_on(weak: Weak, fenced: str) -> None:
    assert any(result for moment in range(3) for result in sleeps_on(weak, moment, fenced))
