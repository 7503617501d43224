"""Kernels' source, run as Python, on a processor that keeps no order. See test_weak_memory.py."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.weak_memory import Memory, Process, Scene, Weak, allowed, as_python, explore, host, nothing
from unisono.base.linux import FUTEX
from unisono.engine.compile.program import DONE, STEP_BITS, LineWord, PlanWord, StateWord
from unisono.engine.kernels import interpret, ring, waiting
from unisono.engine.kernels.ring_buffer import CAPACITY, CURSOR_WORDS, CursorWord, HeadWord
from unisono.engine.rank import RankEngine

DATA = 1 << 30  # a word of memory that other words are about
STATES, PLAN, CONTROL, CURSORS, RING, TARGET, PAIRS, STAGE, FLAGS, LANES, ROW, OUT, OWN = (
    n << 40 for n in range(1, 14)
)
NUMBER = CONTROL + 8 * LineWord.NUMBER + 8


def set_state(memory: Memory, me: int) -> int:
    """The state of rank `me` of 2, in call 1."""
    state = STATES + (me << 30)
    words = {
        StateWord.RANKS: 2, StateWord.ME: me, StateWord.CALL: 1, StateWord.CONTROL: CONTROL,
        StateWord.TENSORS: state + (3 << 20), StateWord.HEAPS: state + (4 << 20),
        StateWord.LOG: state + (2 << 20),
    }  # fmt: skip
    for word, value in words.items():
        memory.write(state + 8 * word, value)
    for word, value in ((PlanWord.SIGNATURE, 77), (PlanWord.SHARED, 99)):
        memory.write(PLAN + 8 * word, value)
    return state


def set_cursor(memory: Memory, side: int, capacity: int = 4096) -> int:
    cursor = CURSORS + (side << 20)
    assert CURSOR_WORDS < 1 << 17
    for word, value in ((CursorWord.RING, RING), (CursorWord.DONE, -1)):
        memory.write(cursor + 8 * word, value)
    memory.write(RING + CAPACITY, capacity)
    return cursor


def pass_gate(memory: Memory, me: int, others: dict[str, Any]) -> int:
    state = set_state(memory, me)
    status: int = as_python(interpret._gate, memory, others)(PLAN, 0, 0, 1000 + me, 2000 + me, state)
    return status


def sees_gate(memory: Memory, others: dict[str, Any]) -> bool:
    state = STATES + (1 << 30)
    if pass_gate(memory, 1, others) != DONE:
        return True
    addresses = state + (3 << 20)
    return (memory.read(addresses), memory.read(addresses + 8)) == (1000, 2000)


def post(memory: Memory, others: dict[str, Any]) -> None:
    memory.write(DATA, 1)
    as_python(interpret.publish_and_wake, memory, others)(CONTROL + 8 * LineWord.PROGRESS, 5, 0)


def sees_post(memory: Memory, others: dict[str, Any]) -> bool:
    state = set_state(memory, 1)
    return not as_python(interpret._progress, memory, others)(CONTROL, 0, 5, state) or memory.read(DATA) == 1


def sees_change(memory: Memory, others: dict[str, Any]) -> bool:
    changed = as_python(waiting.has_changed, memory, others)(CONTROL + 8 * LineWord.PROGRESS, 5, 0, 0)
    return not changed or memory.read(DATA) == 1


def offer(memory: Memory, others: dict[str, Any]) -> None:
    """Make a ring, then say where it is."""
    memory.write(RING + CAPACITY, 4096)
    as_python(waiting.publish_and_wake, memory, others)(PAIRS + 16, RING, 0)


def accepts(memory: Memory, others: dict[str, Any]) -> bool:
    for k in range(2):
        memory.write(PAIRS + 8 * k, PAIRS + 16 + 8 * k)
    return not as_python(waiting.poll, memory, others)(PAIRS, 1, TARGET) or memory.read(RING + CAPACITY) == 4096


def send(memory: Memory, others: dict[str, Any]) -> None:
    cursor = set_cursor(memory, 0)
    memory.write(cursor + 8 * (CursorWord.HEADER + HeadWord.NBYTES), 8)
    memory.write(DATA, 7)
    assert as_python(ring.write, memory, others)(cursor, DATA) == 1


def receives(memory: Memory, others: dict[str, Any]) -> bool:
    cursor = set_cursor(memory, 1)
    if not as_python(ring.read_header, memory, others)(cursor):
        return True
    done = as_python(ring.read_payload, memory, others)(cursor, TARGET)
    return done == 1 and memory.read(TARGET) == 7


def send_whole(memory: Memory, others: dict[str, Any]) -> None:
    cursor = set_cursor(memory, 0)
    memory.write(cursor + 8 * (CursorWord.HEADER + HeadWord.NBYTES), 8)
    memory.write(DATA, 7)
    assert as_python(ring.write_whole, memory, others)(cursor, DATA, 5) == 1


def receives_whole(memory: Memory, others: dict[str, Any]) -> bool:
    cursor = set_cursor(memory, 1)
    done = as_python(ring.read_whole, memory, others)(cursor, TARGET, 0, 8, 5)
    arrived = memory.read(cursor + 8 * CursorWord.POSITION)
    return memory.read(TARGET) == 7 if done else arrived == 0


def send_pieces(memory: Memory, others: dict[str, Any]) -> None:
    """Publish the words of a frame one by one."""
    cursor = set_cursor(memory, 0)
    memory.write(cursor + 8 * (CursorWord.HEADER + HeadWord.NBYTES), 16)
    for k in range(2):
        memory.write(DATA + 8 * k, 7 + k)
    assert as_python(ring.write, memory, {"PIECE_BYTES": 8, **others})(cursor, DATA) == 1


def receives_pieces(memory: Memory, others: dict[str, Any]) -> bool:
    """Take the words that are there, the second one perhaps after a second look."""
    cursor = set_cursor(memory, 1)
    taken = as_python(ring.read_whole, memory, others)(cursor, TARGET, 0, 16, 0)
    done = memory.read(cursor + 8 * CursorWord.DONE) if taken == 2 else 16 * taken
    return all(memory.read(TARGET + 8 * k) == 7 + k for k in range(done // 8))


def leave(memory: Memory, others: dict[str, Any]) -> None:
    """Give the call up, then overwrite the tensor that peers may still read."""
    memory.release(NUMBER, 1)
    RankEngine._sign_off(host(memory, CONTROL), inline=False)
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
    "wait": (nothing, post, sees_change),
    "mail": (nothing, offer, accepts),
    "ring": (nothing, send, receives),
    "whole frame": (nothing, send_whole, receives_whole),
    "pieces": (nothing, send_pieces, receives_pieces),
    "a rank that leaves": (sign, leave, sees_leaver),
}
ORDERS: list[tuple[dict[str, Any], dict[str, Any]]] = [({"store_release": "write"}, {}), ({}, {"load_acquire": "read"})]
KERNEL_MUTANTS = [(name, *how) for name in [*KERNEL_SCENES][:-1] for how in ORDERS]
KERNEL_MUTANTS += [("a rank that leaves", {}, {"acquire_fence": "order_nothing"})]


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


# What a rank has copied before others may overwrite it


def read_of_ring(memory: Memory, others: dict[str, Any]) -> None:
    cursor = set_cursor(memory, 1, 64)
    assert as_python(ring.read_header, memory, others)(cursor) == 1
    assert as_python(ring.read_payload, memory, {"memcpy": "copy_late", **others})(cursor, TARGET) == 1


def read_of_whole_frame(memory: Memory, others: dict[str, Any]) -> None:
    cursor = set_cursor(memory, 1, 64)
    assert as_python(ring.read_whole, memory, {"memcpy": "copy_late", **others})(cursor, TARGET, 0, 8, 0) == 1


def write_ring_again(memory: Memory) -> None:
    memory.write(DATA, 9)
    as_python(ring.write, memory, {})(CURSORS, DATA)


def fill_ring(memory: Memory) -> None:
    """The only message for which there is room."""
    send(memory, {})
    memory.write(RING + CAPACITY, 64)


def read_of_stage(memory: Memory, others: dict[str, Any]) -> None:
    memory.copy_late(TARGET, STAGE, 8)
    as_python(interpret.publish_and_wake, memory, others)(CONTROL + 128 + 8 * LineWord.PROGRESS, 1 << STEP_BITS, 0)


def write_stage_again(memory: Memory) -> None:
    """Rank 0 writes to the half of segment 2 what rank 1 has read in segment 0."""
    state = set_state(memory, 0)
    memory.write(state + 8 * StateWord.READERS_0, FLAGS)
    memory.write(FLAGS + 8, 1)
    if as_python(interpret._readers_are_past, memory, {})(CONTROL, 2, 2, state) == DONE:
        memory.write(STAGE, 9)


COPIED: dict[str, tuple[Callable[[Memory], object], Callable[..., object], Callable[[Memory], object]]] = {
    "ring": (fill_ring, read_of_ring, write_ring_again),
    "whole frame": (fill_ring, read_of_whole_frame, write_ring_again),
    "staging half": (nothing, read_of_stage, write_stage_again),
}


def copies_what_comes_later(name: str, others: dict[str, Any]) -> Iterator[bool]:
    """A rank copies, then says so; when the owner sees that, it writes something else: is this copied?"""
    known, read, write_again = COPIED[name]

    def run(choose: Callable[[int], int]) -> bool:
        memory = Memory(choose)
        owner, reader = memory.running, Process()
        known(memory)
        memory.running = reader
        memory.know_all()
        read(memory, others)
        memory.running = owner
        write_again(memory)
        memory.running = reader
        memory.catch_up()
        return memory.read(TARGET) == 9

    return explore(run)


@pytest.mark.parametrize("name", COPIED)
def test_data_is_copied_before_it_is_overwritten(name: str) -> None:
    results = list(copies_what_comes_later(name, {}))
    assert len(results) > 1
    assert not any(results)
    assert any(copies_what_comes_later(name, {"store_release": "write"}))


# Sleepers

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


def test_sleeper_or_writer_sees_the_other(weak: Weak) -> None:
    assert not any(result for moment in range(3) for result in sleeps_on(weak, moment, "all"))


@pytest.mark.parametrize("fenced", ["own", "none"])
def test_fence_of_one_process_is_not_enough(weak: Weak, fenced: str) -> None:
    assert any(result for moment in range(3) for result in sleeps_on(weak, moment, fenced))
