"""The logs of a rank, read while it writes, on a processor that keeps no order. See test_weak_memory.py."""

import itertools
import json
from typing import Any

import pytest

from tests.support.weak_memory import Memory, Page, Scene, Weak, allowed, as_python
from unisono.engine.compile.program import StateWord
from unisono.engine.kernels import interpret
from unisono.engine.logs.plan_registry import GroupNote, PlanRegistry
from unisono.engine.logs.rank_logs import CallLog, log_bytes

BEGIN, STATE = 1 << 20, 1 << 40
"""Where the log of a scene is, and the words of the kernel that writes it."""


def calls(memory: Memory) -> CallLog:
    return CallLog(Page(memory, BEGIN, log_bytes(4)))  # type: ignore[arg-type]


def call(memory: Memory, *numbers: int, ended: int = 0) -> None:
    """Enter calls of these numbers, and leave one of them."""
    for number in numbers:
        calls(memory).enter(number, 100 + number, 10 * number)
    calls(memory).leave(ended, 10 * ended + 5)


def is_a_call(logged: Any) -> bool:
    number = logged.number
    known = (logged.note, logged.entered) == (100 + number, 10 * number)
    return known and logged.left in (0, 75 * (number == 7)) and logged.background <= (number == 7)


def are_calls(memory: Memory) -> bool:
    return all(map(is_a_call, calls(memory).read()))


def call_by_kernel(memory: Memory, others: dict[str, Any]) -> None:
    begin_by_kernel(memory, others)
    as_python(interpret.log_end, memory, {"cycles": lambda: 75, **others})(STATE)


def leave_in_python(memory: Memory) -> None:
    begin_by_kernel(memory, {})
    calls(memory).leave(7, 75)


def mark_in_python(memory: Memory) -> None:
    begin_by_kernel(memory, {})
    calls(memory).mark_background(7)


def begin_by_kernel(memory: Memory, others: dict[str, Any]) -> None:
    for word, value in ((StateWord.LOG, BEGIN), (StateWord.LOG_MASK, 3)):
        memory.write(STATE + 8 * word, value)
    for number in (5, 6, 7):
        memory.write(STATE + 8 * StateWord.CALL, number)
        begin = as_python(interpret.log_entry, memory, {"cycles": lambda number=number: 10 * number, **others})
        begin(100 + number, STATE)


def registry(memory: Memory) -> PlanRegistry:
    return PlanRegistry(Page(memory, BEGIN, 1024))  # type: ignore[arg-type]


def is_a_note(memory: Memory) -> bool:
    number, data = registry(memory)._read(1)
    return (number, data) in [(7, b"old"), (8, b"new")] or not number


GROUPS = [GroupNote(name, 4096, 0, 2, "", 0, number) for number, name in enumerate("ab", 1)]


def note_group(memory: Memory, number: int) -> None:
    """Remove the first note, and write another one in its place."""
    made = registry(memory)
    made._changes = itertools.count(number)
    if number > 1:
        made.remove_group(1)
    made.set_group(1, GROUPS[number - 1])


def is_a_group(memory: Memory) -> bool:
    number, data = registry(memory)._read(1)
    return not number or data in [json.dumps(note).encode() for note in GROUPS]


SCENES = {
    "calls": Scene(lambda m: call(m, 1, 2, 3, 4), lambda m: call(m, 5, 6, 7, ended=7), are_calls),
    "a call that an error ends": Scene(lambda m: call(m, 1, 2, 3, 4), leave_in_python, are_calls),
    "a call of a background thread": Scene(lambda m: call(m, 1, 2, 3, 4), mark_in_python, are_calls),
    "note": Scene(lambda m: registry(m)._write(1, 7, b"old"), lambda m: registry(m)._write(1, 8, b"new"), is_a_note),
    "note on a group": Scene(lambda m: note_group(m, 1), lambda m: note_group(m, 2), is_a_group),
}


def by_kernel(others: dict[str, Any]) -> dict[str, Scene]:
    """Calls that the kernel logs."""
    known = SCENES["calls"].known
    return {"calls of a kernel": Scene(known, lambda m: call_by_kernel(m, others), are_calls)}


SCENES |= by_kernel({})


@pytest.mark.parametrize("name", SCENES)
def test_a_reader_sees_what_was_logged(weak: Weak, name: str) -> None:
    results = list(allowed(weak, SCENES[name]))
    assert len(results) > 1
    assert all(results)


@pytest.mark.parametrize("mutant", ["writer", "reader"])
@pytest.mark.parametrize("name", SCENES)
def test_without_an_order_it_does_not(weak: Weak, name: str, mutant: str) -> None:
    scenes = SCENES | by_kernel({"store_release": "write"} if mutant == "writer" else {})
    assert not all(allowed(weak, scenes[name], mutant))
