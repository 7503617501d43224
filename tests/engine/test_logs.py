"""The rings of a rank's last calls."""

import pytest
import torch

import unisono
from unisono import MismatchError
from unisono.base.records import CallRecord
from unisono.engine.clock import Clock, read_cycles
from unisono.engine.logs.plan_registry import PLAN_REGISTRY_BYTES, GroupNote, PlanNote, PlanRegistry
from unisono.engine.logs.rank_logs import CALLS, CallLog, LoggedCall, log_bytes


def entry_log(calls: int = 8) -> CallLog:
    return CallLog(memoryview(bytearray(log_bytes(calls))))


def test_the_last_calls_are_kept() -> None:
    log = entry_log()
    assert log.read() == []
    for number in range(1, 20):
        log.enter(number, 100 + number, 10 * number)
        if number < 19:
            log.leave(number, 10 * number + 5)
    log.leave(27, 300)  # which is not entered; it has the same entry
    calls = log.read()
    assert [(call.number, call.note) for call in calls] == [(k, 100 + k) for k in range(14, 20)]
    assert [(call.entered, call.left) for call in calls[:-1]] == [(10 * k, 10 * k + 5) for k in range(14, 19)]
    assert calls[-1] == LoggedCall(19, 119, 190, 0)


def test_cycles_become_nanoseconds() -> None:
    one = Clock.now()
    middle = read_cycles()
    other = Clock.now()
    assert one.ns <= one.ns_at(middle, other) <= other.ns
    assert Clock(1000, 50).ns_at(3000, Clock(5000, 250)) == 150


def test_plan_in_use_keeps_its_note() -> None:
    pages, log = memoryview(bytearray(PLAN_REGISTRY_BYTES)), entry_log(CALLS)
    book = PlanRegistry(pages)
    book.used_by(log)
    note = PlanNote(CallRecord("all_reduce", "float32", (1,), where="train.py:1"), 4)
    mine, other = book.add_plan(note), 0
    for k in range(2000):
        log.enter(2 * k + 1, mine, k)
        other = book.add_plan(PlanNote(CallRecord("broadcast", "int64", (k,), where="train.py:2"), 8 * k))
        log.enter(2 * k + 2, other, k)
        assert book.plan(mine) == note
        assert book.plan(other)
    assert PlanRegistry(pages).plan(mine) == note
    for k in range(CALLS):
        log.enter(5000 + k, other, k)
    for _ in range(300):
        book.add_plan(note)
    assert book.plan(mine) is None
    assert book.plan(other)


def test_notes_of_groups_go_and_come() -> None:
    pages = memoryview(bytearray(PLAN_REGISTRY_BYTES))
    mine, seen = PlanRegistry(pages), PlanRegistry(pages)
    notes = [GroupNote(f"group {k}", 4096 * k, k % 3, 3, "", k, k) for k in range(40)]
    places = [mine.add_group(note) for note in notes]
    room = sum(place is not None for place in places)
    assert list(seen.groups()) == notes[:room]
    mine.remove_group(places[1] or 0)
    assert list(seen.groups()) == [notes[0], *notes[2:room]]
    long = GroupNote("ö" * 5000, 4096, 0, 2, "", 1, 1)
    assert mine.add_group(long) is not None
    assert any(note.name and long.name.startswith(note.name) for note in seen.groups())


@pytest.mark.ranks(3)
def test_a_sub_group_has_a_log_of_its_own() -> None:
    world = unisono.init()
    pair = unisono.new_group([0, 1], name="logged pair")
    if world.rank < 2:
        for _ in range(3):
            unisono.all_reduce(torch.full((2,), world.rank + 1.0), group=pair)
        calls = pair.engine.log.read()
        assert [call.number for call in calls][:3] == [1, 2, 3]
        note = next(note for note in world.engine.plan_registry.groups() if note.name == "logged pair")
        assert (note.rank, note.size, note.start) == (world.rank, 2, pair.engine.arena.start)
        unisono.destroy_group(pair)
    assert "logged pair" not in {note.name for note in world.engine.plan_registry.groups()}


@pytest.mark.ranks(2)
def test_refused_call_is_logged_as_left() -> None:
    group = unisono.init()
    number = group.engine.call_number
    with pytest.raises(MismatchError):
        unisono.all_reduce(torch.full((2 + group.rank,), 1.0))
    unisono.barrier()
    call = next(call for call in group.engine.log.read() if call.number == number)
    assert call.left > call.entered
