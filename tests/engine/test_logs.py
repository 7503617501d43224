"""The rings of a rank's last calls."""

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world, in_world
from unisono import MismatchError
from unisono.base.records import CallRecord
from unisono.engine.clock import Clock, read_cycles
from unisono.engine.logs.plan_registry import PLAN_REGISTRY_BYTES, GroupNote, PlanNote, PlanRegistry
from unisono.engine.logs.rank_logs import CALLS, CallLog, LoggedCall, log_bytes
from unisono.ranks.group.group import Group


def entry_log(calls: int = 8) -> CallLog:
    return CallLog(memoryview(bytearray(log_bytes(calls))))


def test_the_last_calls_are_kept() -> None:
    log = entry_log()
    assert (log.read(), log.latest()) == ([], None)
    for number in range(1, 20):
        log.enter(number, 100 + number, 10 * number)
        if number < 19:
            log.leave(number, 10 * number + 5)
    calls = log.read()
    assert [(call.number, call.note) for call in calls] == [(k, 100 + k) for k in range(14, 20)]
    assert [(call.entered, call.left) for call in calls[:-1]] == [(10 * k, 10 * k + 5) for k in range(14, 19)]
    assert log.latest() == calls[-1] == LoggedCall(19, 119, 190, 0)


def test_who_has_not_entered_a_call_does_not_leave_it() -> None:
    log = entry_log()
    log.enter(1, 1, 7)
    log.leave(9, 8)  # the same entry
    assert log.latest() == LoggedCall(1, 1, 7, 0)


def test_cycles_become_nanoseconds() -> None:
    one = Clock.now()
    middle = read_cycles()
    other = Clock.now()
    assert one.ns <= one.ns_at(middle, other) <= other.ns
    assert Clock(1000, 50).ns_at(3000, Clock(5000, 250)) == 150


def test_the_latest_notes_of_plans_are_kept() -> None:
    pages = memoryview(bytearray(PLAN_REGISTRY_BYTES))
    mine, seen = PlanRegistry(pages), PlanRegistry(pages)
    notes = {}
    for k in range(300):
        note = PlanNote(CallRecord("all_reduce", "float32", (k,), where=f"train.py:{k}"), 4 * k)
        notes[mine.add_plan(note)] = note
    assert seen.plan(300) == notes[300]
    assert seen.plan(1) is seen.plan(301) is seen.plan(0) is None
    found = [number for number in notes if seen.plan(number)]
    assert found == list(range(301 - len(found), 301))
    assert len(found) > 50


def test_a_plan_in_use_keeps_its_note_however_many_others_are_made() -> None:
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


def calls_of(group: Group, rank: int) -> list[LoggedCall]:
    return group.host.arena.log(rank).read()


@in_new_world(3)
def test_every_rank_can_read_what_all_have_called() -> None:
    group = unisono.init()
    first, me = group.host.call_number, group.rank
    ours = torch.full((3,), me + 1.0)
    for _ in range(CALLS + 5):
        unisono.all_reduce(ours, "max")
    unisono.broadcast(torch.full((5,), float(me)), 1)
    unisono.barrier()
    for rank in range(group.size):
        calls = calls_of(group, rank)
        assert len(calls) == CALLS - 2
        book = group.host.arena.plan_registry(rank)
        said = {call.number: book.plan(call.note) for call in calls}
        note = said[first + CALLS + 4]
        assert (note.record.collective, note.record.counts, note.nbytes) == ("all_reduce", (3,), 12)
        assert note.record.algorithm.startswith("all_reduce.")
        assert note.record.where.startswith(f"{__file__}:")
        note = said[first + CALLS + 5]
        assert (note.record.collective, note.record.root) == ("broadcast", 1)
        assert all(0 < call.entered < call.left for call in calls[:-1])
        names = {note.name: (note.rank, note.size) for note in book.groups()}
        assert names[group.name] == (rank, group.size)


@in_world(3)
def test_a_sub_group_has_a_log_of_its_own() -> None:
    world = unisono.init()
    pair = unisono.new_group([0, 1], name="logged pair")
    if world.rank < 2:
        for _ in range(3):
            unisono.all_reduce(torch.full((2,), world.rank + 1.0), group=pair)
        calls = pair.host.log.read()
        assert [call.number for call in calls][:3] == [1, 2, 3]
        note = next(note for note in world.host.plan_registry.groups() if note.name == "logged pair")
        assert (note.rank, note.size, note.start) == (world.rank, 2, pair.host.arena.start)
        unisono.destroy_group(pair)
    assert "logged pair" not in {note.name for note in world.host.plan_registry.groups()}


@in_world(2)
def test_a_call_that_nobody_has_made_is_logged_as_left() -> None:
    group = unisono.init()
    number = group.host.call_number
    with pytest.raises(MismatchError):
        unisono.all_reduce(torch.full((2 + group.rank,), 1.0))
    unisono.barrier()
    call = next(call for call in calls_of(group, group.rank) if call.number == number)
    assert call.left > call.entered


def test_calls_over_several_hosts_are_logged_with_their_parts() -> None:
    def work() -> list[tuple[str, str]]:
        group = unisono.init()
        assert group.span is not None
        unisono.all_reduce(torch.full((4,), group.rank + 1.0))
        unisono.barrier()
        whole = group.host.log.read()
        assert all(call.entered < call.left for call in whole)
        book = group.host.plan_registry
        notes = [book.plan(call.note) for call in whole]
        parts = {note.name for note in book.groups()}
        assert any("on one host" in name for name in parts)
        return [(note.record.collective, note.record.algorithm) for note in notes if note]

    for said in unisono.run(work, ranks=4, hosts="2x2"):
        assert [collective for collective, _ in said] == ["all_reduce", "barrier"]
        assert all(" over 2x2" in algorithm for _, algorithm in said)
