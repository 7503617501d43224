"""The rings of a rank's last calls, and of the rows of its programs."""

import ast
import platform
import struct
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world, in_world
from unisono import MismatchError
from unisono.base.records import CallRecord
from unisono.engine.clock import Clock, read_cycles
from unisono.engine.compile.program import StateWord
from unisono.engine.kernels import interpret, kernel, unit
from unisono.engine.kernels.compiled import compiled, object_file
from unisono.engine.logs.plan_registry import PLAN_REGISTRY_BYTES, GroupNote, PlanNote, PlanRegistry
from unisono.engine.logs.rank_logs import CALLS, REUSE, CallLog, LoggedCall, LoggedRow, RowLog, log_bytes, row_log_bytes
from unisono.engine.machine_code import symbol
from unisono.engine.make_image import image_of
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


def log(rows: list[tuple[int, int, int, int, int]], first: int = 1) -> RowLog:
    """A log of 8 rows, which count from `first`."""
    memory = bytearray(row_log_bytes(8))
    for count, row in enumerate(rows, first):
        struct.pack_into("<6q", memory, row_log_bytes((count - 1) % 8), count, *row)
    return RowLog(memoryview(memory))


def test_segments_are_counted_in_each_call_and_a_row_without_an_end_goes_on() -> None:
    found = log([(1, 7, REUSE, 10, 11), (1, 7, 0, 12, 15), (1, 8, 0, 16, 19), (2, 9, 3, 30, 19)]).read()
    assert found == [
        LoggedRow(1, 0, REUSE, 10, 11), LoggedRow(1, 0, 0, 12, 15), LoggedRow(1, 1, 0, 16, 19),
        LoggedRow(2, 0, 3, 30, 0),
    ]  # fmt: skip


def test_a_log_that_has_gone_round_leaves_out_the_call_that_it_has_in_part() -> None:
    rows = [(call, call, row, 10 * call + row, 10 * call + row) for call in range(1, 6) for row in range(2)]
    found = log(rows[-8:], 3).read()  # it leaves out two, since the next row may overwrite them
    assert [(row.number, row.row) for row in found] == [(4, 0), (4, 1), (5, 0), (5, 1)]


def test_rows_behind_one_that_is_being_written_are_left_out() -> None:
    memory = bytearray(row_log_bytes(8))
    for count in (1, 2, 4):
        struct.pack_into("<6q", memory, row_log_bytes(count - 1), count, 1, 1, count, 10 * count, 10 * count + 5)
    assert [row.row for row in RowLog(memoryview(memory)).read()] == [1, 2]


def test_a_row_that_an_error_has_ended_stays() -> None:
    """The kernel logs the rows of the next call behind it."""
    memory = np.zeros(row_log_bytes(8) // 8, np.int64)
    state = np.zeros(StateWord.WORDS, np.int64)
    state[StateWord.ROW_LOG], state[StateWord.ROW_LOG_MASK] = memory.ctypes.data, 7
    for call in (1, 1, 2):  # the rank comes back to the row of call 1
        state[StateWord.CALL] = call
        interpret._begin_row(state.ctypes.data, 5, 0)
    interpret._end_row(state.ctypes.data)
    one, two = RowLog(memoryview(memory)).read()
    assert (one.number, one.ended, two.number) == (1, 0, 2)
    assert one.began < two.began < two.ended


class WithoutLogging(ast.NodeTransformer):
    """The source of the kernel's loop without a word about the log of rows."""

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        if isinstance(node.test, ast.Name) and node.test.id == "_RECORDS":
            return []
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        node.values = [value for value in node.values if not (isinstance(value, ast.Name) and value.id == "_RECORDS")]
        return node if len(node.values) > 1 else node.values[0]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has code images")
@pytest.mark.long
@pytest.mark.timeout(300)  # it compiles the kernel
def test_the_usual_kernel_has_no_trace_of_it() -> None:
    """Its machine code is the same as that of a source in which rows are not logged at all."""
    path = Path(interpret.__file__)
    (loop,) = (node for node in ast.parse(path.read_text()).body if getattr(node, "name", "") == "run")
    assert "_RECORDS" in ast.unparse(loop)
    loop = WithoutLogging().visit(loop)
    assert "_RECORDS" not in ast.unparse(loop)
    assert "row(" not in ast.unparse(loop)
    loop.decorator_list = []
    names: dict[str, Any] = {}
    exec(compile(ast.Module([loop], []), str(path), "exec"), vars(interpret).copy(), names)  # noqa: S102  own code
    plain = compiled(FunctionType(names["run"].__code__, vars(interpret)))
    kernel("interpret.run")  # it is on disk now, if it can be kept there: that saves compiling it here
    usual = unit("interpret.run")._read() or image(interpret.run)
    assert usual == image(plain)


def image(function: Any) -> bytes | None:
    """Machine code without the names that a process has given to its parts: these count what it has compiled before."""
    return image_of(object_file("interpret.run", function), symbol("interpret.run"))
