"""Traces with rounds: what ranks do inside calls, as nested slices and as a report."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.support.waiting import once_waiting, until
from unisono.base.records import CallRecord
from unisono.engine.compile.program import ENTER, LEAVE, Op
from unisono.engine.host import interpreter
from unisono.engine.logs.plan_registry import PlanNote, ProgramRow
from unisono.observe.traces.perfetto import events
from unisono.observe.traces.recorded import Recorded, jobs_in, recorded
from unisono.observe.traces.recording import export
from unisono.observe.traces.rounds import WaitedIn, round_report, stretches
from unisono.observe.traces.tracks import RankCall, RankRow, Track
from unisono.schedule import Hosts
from unisono.schedule.algorithms import find

RANKS, LENGTH = 3, 1 << 14


def traced(folder: Path) -> list[Recorded]:
    (job,) = jobs_in(folder)
    return recorded([folder], job)


def nested(found: list[dict[str, Any]]) -> list[tuple[dict[str, Any], ...]]:
    """The slices with those around them, outermost first. They lie in each other, or beside each other."""
    chains = []
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in found:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for slices in tracks.values():
        around: list[dict[str, Any]] = []
        for one in slices:
            while around and around[-1]["ts"] + around[-1]["dur"] <= one["ts"] + 1e-4 and one["cat"] != "call":
                around.pop()
            around = [] if one["cat"] == "call" else around
            if around:
                assert around[-1]["ts"] <= one["ts"]
                assert one["ts"] + one["dur"] <= around[-1]["ts"] + around[-1]["dur"] + 1e-3
            around.append(one)
            chains.append(tuple(around))
    return chains


def values(rank: int) -> torch.Tensor:
    return torch.arange(LENGTH, dtype=torch.float64) * (rank + 1) + rank


def work() -> None:
    rank = unisono.get_rank()
    long, short = values(rank), values(rank)[:4].clone()
    unisono.all_reduce(long, algorithm="ring")
    unisono.all_reduce(short, algorithm="one_shot")
    unisono.barrier()
    expected = torch.stack([values(other) for other in range(RANKS)]).sum(0)
    assert torch.equal(long, expected)
    assert torch.equal(short, expected[:4])


def test_calls_have_their_rounds_and_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    monkeypatch.setenv("UNISONO_TRACE_ROUNDS", "1")
    monkeypatch.setenv("UNISONO_SEGMENT_BYTES", str(32 << 10))
    unisono.run(work, RANKS, timeout_s=100)
    table = find("all_reduce", "ring").schedule(RANKS)
    parts = traced(tmp_path)
    assert [part.rank for part in parts] == [0, 1, 2]
    for part in parts:
        (track,) = part.tracks
        ring, short, barrier = (track.rows[call.number] for call in track.calls)
        count = ring[-1].segment + 1
        assert count > 1
        assert {row.segment for row in ring} == set(range(count))
        for k in range(count):
            segment = [row for row in ring if row.segment == k]
            assert {row.round for row in segment} == {ENTER, *range(table.rounds)}
            assert [row.kind for row in segment].count("combine") >= RANKS - 1
        assert [row.kind for row in ring].count("gate") == 1
        assert [row.kind for row in short] == ["reuse", "copy", "gate", "wait", "wait", "combine"]
        assert {row.what.sources[0] for row in short if row.kind == "wait" and row.what} == {0, 1, 2} - {part.rank}
        assert "gate" in {row.kind for row in barrier}
        for call in track.calls:
            times = [moment for row in track.rows[call.number] for moment in (row.began_ns, row.ended_ns)]
            assert [call.entered_ns, *times, call.left_ns] == sorted([call.entered_ns, *times, call.left_ns])
    path = export([tmp_path], parts[0].job)
    chains = nested(json.loads(path.read_text())["traceEvents"])
    names = {tuple(one["name"] for one in chain) for chain in chains if chain[0]["pid"] == 1}
    assert ("all_reduce 128 KiB", "segment 1", "round 0") in {name[:3] for name in names}
    assert ("all_reduce 32 B", "round 0", "wait for rank 2") in names
    assert ("barrier", "enter", "wait for all to enter") in names
    assert {kind.algorithm for kind in round_report(track for part in parts for track in part.tracks)} >= {
        "all_reduce.ring", "all_reduce.one_shot",
    }  # fmt: skip


def test_a_part_of_a_program_is_traced_with_rounds(tmp_path: Path) -> None:
    def part() -> None:
        world = unisono.init()
        tensor = torch.full((6,), world.rank + 1.0)
        unisono.all_reduce(tensor, "max")
        with unisono.tracing(tmp_path, rounds=True):
            assert world.run is interpreter(logs_rows=True)
            unisono.all_reduce(tensor, "max")
            unisono.all_reduce(tensor, "min")
            pair = unisono.new_group([0, 2], name="pair")
            if world.rank != 1:
                unisono.all_reduce(tensor, "max", group=pair)
        assert world.run is interpreter()
        unisono.all_reduce(tensor, "sum")
        assert tensor.tolist() == [9.0] * 6
        if world.rank != 1:
            unisono.all_reduce(tensor, "sum", group=pair)
            assert tensor.tolist() == [18.0] * 6

    unisono.run(part, RANKS, timeout_s=100)
    for one in traced(tmp_path):
        for track in one.tracks:
            kinds = {number: [row.kind for row in rows] for number, rows in track.rows.items()}
            for number in [1] if track.group == "pair" else [2, 3]:
                assert {"gate", "combine"} <= set(kinds[number])
            assert {track.members[row.what.sources[0]] for rows in track.rows.values() for row in rows
                    if row.what and row.kind == "wait"} == set(track.members) - {one.rank}  # fmt: skip


def test_a_call_that_an_error_ends_shows_where_the_rank_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies() -> None:
        unisono.barrier()
        if unisono.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        unisono.barrier()

    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    monkeypatch.setenv("UNISONO_TRACE_ROUNDS", "1")
    with pytest.raises(unisono.RankFailed):
        unisono.run(dies, 2, timeout_s=100)
    parts = traced(tmp_path)
    (track,) = parts[0].tracks
    last = track.rows[2][-1]
    assert (last.kind, last.ended_ns) == ("gate", track.calls[-1].left_ns)
    nested([*events(parts)])


# Of rows made up here

ROWS = (
    ProgramRow(ENTER, Op.GATE),
    ProgramRow(0, Op.MOVE, (0,), (0, 2)),
    ProgramRow(1, Op.WAIT, (1,)),
    ProgramRow(1, Op.WAIT, (2,)),
    ProgramRow(1, Op.MOVE, (0, 1, 2), (0,)),
    ProgramRow(LEAVE, Op.WAIT, (2,)),
)
NOTE = PlanNote(
    CallRecord("all_reduce", "float32", (2,), op="sum", algorithm="all_reduce.mine", where="a.py:1"), 8, ROWS
)
TIMES = [(0, 100), (110, 150), (150, 250), (260, 560), (560, 700), (700, 720)]


def track(cut: int = 6) -> Track:
    """A call of rank 5 in a group with ranks 8 and 9; not finished before this row."""
    rows = [RankRow(0, 1000 + first, 1000 + last, what) for (first, last), what in zip(TIMES, ROWS, strict=True)]
    rows = rows[: cut + 1]
    if cut < len(ROWS):
        rows[-1] = rows[-1]._replace(ended_ns=0)
    call = RankCall(4, 1000, 1730 if cut == len(ROWS) else 0, NOTE)
    return Track("some", 0, 5, 0, 3, [call], rows={4: rows}, members=(5, 8, 9))


def test_a_round_tells_for_whom_the_rank_has_waited() -> None:
    found = {one.name: one for one in stretches(track(), track().calls[0])}
    assert list(found) == [
        "enter", "wait for all to enter", "round 0", "copy to rank 9", "round 1", "wait for rank 8",
        "wait for rank 9", "combine from ranks 8, 9", "leave",
    ]  # fmt: skip
    assert found["round 1"].waited_for == {8: 100, 9: 300}
    assert (found["round 1"].waited_ns, found["round 1"].began_ns, found["round 1"].ended_ns) == (400, 1150, 1700)
    assert found["enter"].waited_ns == 100
    assert not any(one.cut for one in found.values())


def test_a_row_that_goes_on_is_cut() -> None:
    found = [*stretches(track(3), track(3).calls[0])]
    assert [one.name for one in found if one.cut] == ["round 1", "wait for rank 9"]
    part = Recorded("j", 5, 10, 0, "a", "m", 7, 7, "", 0, False, [track(3)])
    chains = nested([*events([part])])
    assert [one["name"] for one in chains[-1]] == ["all_reduce 8 B", "round 1", "wait for rank 9"]


def test_the_report_says_where_ranks_wait() -> None:
    (kind,) = round_report([track(), track(3)])
    assert (kind.total_ns, kind.entering_ns, kind.copying_ns, kind.combining_ns) == (730, 100, 40, 140)
    assert kind.waiting_ns == 100 + 300 + 20
    assert kind.worst == WaitedIn(1, 9, 300)


@pytest.mark.parametrize("shape", ["3x1", "2x2"])
def test_what_goes_between_hosts_is_in_rounds(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def calls() -> None:
        group, length = unisono.init(), 1 << 20
        for _ in range(3):
            unisono.all_reduce(torch.ones(2))
        if group.rank == 0:
            until(lambda: len(list(waiting.iterdir())) == group.size - 1)
        else:
            once_waiting((waiting / str(group.rank)).touch)
        tensor = torch.ones(length)
        unisono.all_reduce(tensor)
        assert tensor.eq(group.size).all()

    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    monkeypatch.setenv("UNISONO_TRACE_ROUNDS", "1")
    monkeypatch.setenv("UNISONO_LINK", "200Mbit")  # so a long vector goes in pieces
    hosts, waiting = Hosts.parse(shape), tmp_path / "waiting"
    waiting.mkdir()
    unisono.run(calls, hosts.ranks, hosts=shape, timeout_s=100)
    parts, talk = traced(tmp_path), set[int]()
    (came_ns,) = [part.tracks[0].calls[3].entered_ns for part in parts if part.rank == 0]
    for part in parts:
        (track,) = [track for track in part.tracks if track.group == "world"]
        far = set(range(hosts.ranks)) - set(hosts.beside(part.rank))
        at_home = set(hosts.beside(part.rank)) - {part.rank}
        shorts, long = track.calls[:3], track.calls[3]
        for call in track.calls:
            rows = track.rows.get(call.number, ())
            times = [moment for row in rows for moment in (row.began_ns, row.ended_ns)]
            assert [call.entered_ns, *times, call.left_ns] == sorted([call.entered_ns, *times, call.left_ns])
            for row in rows:
                assert not at_home & {*row.what.sources, *row.what.targets}, "those are traced where they are done"
        assert len({row.segment for row in track.rows[long.number]}) > 1
        kinds = [row.kind for row in track.rows[long.number]]
        assert {"copy", "combine"} <= set(kinds)
        assert {rank for row in track.rows[long.number] if row.what for rank in row.what.targets} & far
        waits = [row for row in track.rows[long.number] if row.kind == "wait" and row.what]
        assert {row.what.sources[0] for row in waits if row.what} <= far
        if 0 in far and shape == "3x1":
            late = [row for row in waits if row.what and row.what.sources == (0,)]
            assert any(row.began_ns < came_ns < row.ended_ns for row in late), "for rank 0"
        talk = talk | {part.rank} if any(call.number in track.rows for call in shorts) else talk
    assert all(talk & set(host) for host in hosts.members)
    nested([*events(parts)])
    found = round_report(track for part in parts for track in part.tracks)
    assert any("over" in kind.algorithm for kind in found)


def test_a_part_of_a_program_over_hosts_is_traced_with_calls_made_before(tmp_path: Path) -> None:
    def part() -> None:
        tensor = torch.ones(3)
        for _ in range(4):
            unisono.all_reduce(tensor, "max")
        with unisono.tracing(tmp_path, rounds=True):
            for _ in range(2):
                unisono.all_reduce(tensor, "max")
        unisono.all_reduce(tensor, "max")

    unisono.run(part, 2, hosts="2x1", timeout_s=100)
    for one in traced(tmp_path):
        (track,) = one.tracks
        assert [call.number for call in track.calls] == [*track.rows]
        assert len(track.rows) == 2
        assert all({"copy", "combine"} <= {row.kind for row in rows} for rows in track.rows.values())
