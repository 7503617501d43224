"""Traces: all calls of a job in one file for Perfetto, by one clock for all hosts, and what they tell."""

import itertools
import json
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import unisono
from tests.support.programs import run_python
from unisono.base.records import CallRecord
from unisono.engine.logs.plan_registry import PlanNote
from unisono.observe.traces.perfetto import events
from unisono.observe.traces.recorded import Recorded, aligned, jobs_in, recorded
from unisono.observe.traces.trace_report import TraceReport, report
from unisono.observe.traces.tracks import RankCall, Track
from unisono.tools.cli import app

NEEDED = {
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict},
    "s": {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "id": int},
    "f": {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "id": int, "bp": str},
}
"""The Trace Event Format, as far as it is used: of each phase, the fields and their types."""


def check(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hold events against the format, and return the slices."""
    for event in found:
        assert set(event) == {"ph", *NEEDED[event["ph"]]}, event
        assert all(isinstance(event[name], kind) for name, kind in NEEDED[event["ph"]].items()), event
    slices = [event for event in found if event["ph"] == "X"]
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for one in slices:
        assert one["dur"] >= 0 <= one["ts"]
        assert one["args"].get("waited_us", 0) <= one["dur"]
        tracks.setdefault((one["pid"], one["tid"]), []).append(one)
    for some in tracks.values():
        some.sort(key=lambda one: one["ts"])
        for one, two in itertools.pairwise(some):
            assert one["ts"] + one["dur"] <= two["ts"] + 1e-3
    named = {(event["pid"], event["tid"]) for event in found if event["name"] == "thread_name"}
    assert named >= set(tracks)
    arrows: dict[int, list[dict[str, Any]]] = {}
    for event in found:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(event)
    for begin, end in arrows.values():
        assert (begin["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert begin["ts"] <= end["ts"]
        for point in (begin, end):
            around = tracks[point["pid"], point["tid"]]
            assert any(one["ts"] - 1e-3 <= point["ts"] <= one["ts"] + one["dur"] + 1e-3 for one in around)
    return slices


def text_in(*folders: Path) -> str:
    """What `unisono trace` prints for these folders, in one line. It also writes a file for Perfetto into the first."""
    done = CliRunner().invoke(app, ["trace", *map(str, folders)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    (path,) = folder.glob("*.json")
    whole = json.loads(path.read_text())
    return whole["otherData"], check(whole["traceEvents"])


def train(steps: int) -> None:
    tensor = torch.full((8,), unisono.get_rank() + 1.0)
    for _ in range(steps):
        unisono.all_reduce(tensor, "max")


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to which jobs are traced from now on."""
    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    return tmp_path


def test_traced_part_has_earlier_plans(tmp_path: Path) -> None:
    def work() -> None:
        world = unisono.init()
        tensor = torch.full((6,), world.rank + 1.0)
        pair = unisono.new_group([0, 2], name="pair")
        unisono.all_reduce(tensor, "max")
        unisono.barrier()
        with unisono.tracing(tmp_path):
            for _ in range(3):
                unisono.all_reduce(tensor, "max")
            if world.rank != 1:
                unisono.all_reduce(tensor, "min", group=pair)
            unisono.barrier()
        unisono.all_reduce(tensor, "max")
        unisono.barrier()
        calls = world.engine.log.read()
        assert len(calls) >= 2  # in shared memory again
        assert all(call.left for call in calls)
        unisono.destroy_group(pair)

    unisono.run(work, 3, timeout_s=90)
    text_in(tmp_path)
    _, slices = read(tmp_path)
    for rank in range(3):
        names = [one["name"] for one in slices if one["pid"] == rank and one["name"] != "barrier"]
        assert sorted(names) == ["all_reduce 24 B"] * (3 if rank == 1 else 4)


def test_each_job_of_a_folder_has_a_file(traced: Path) -> None:
    for _ in range(2):
        unisono.run(train, 2, (3,))
    for reports in (2, 1):  # a job with a file is reported only if it is the latest one
        assert text_in(traced).count("where time goes") == reports
        assert len([*traced.glob("*.json")]) == 2


def test_trace_keeps_the_last_calls(traced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_TRACE_CALLS", "50")
    unisono.run(train, 2, (101,))
    (job,) = jobs_in(traced)
    tracks = [track for part in recorded([traced], job) for track in part.tracks]
    assert [[call.number for call in track.calls][-62:] for track in tracks] == [list(range(40, 102))] * 2
    assert report(tracks).lost == 39


@pytest.mark.cold
def test_command_runs_a_job_and_reports(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, unisono\nunisono.init()\nt = torch.full((4,), unisono.get_rank() + 1.0)\n"
        "for _ in range(40):\n    unisono.all_reduce(t, 'max')\n"
    )
    job = sys.executable, "-m", "unisono", "run", "-n", "2", script
    done = run_python("-m", "unisono", "trace", "-o", tmp_path / "out", "--", *job)
    assert done.returncode == 0, done.stderr
    assert "where time goes" in done.stdout
    assert "one_shot" in done.stdout
    _, slices = read(tmp_path / "out")
    for rank in range(2):
        mine = [one for one in slices if one["pid"] == rank]
        assert [one["args"]["number"] for one in mine] == list(range(1, 41))
        assert {one["name"] for one in mine} == {"all_reduce 16 B"}
        told = "all_reduce(float32[4], max)", "all_reduce.one_shot", f"{script}:5"
        assert tuple(mine[0]["args"][name] for name in ("call", "algorithm", "line")) == told
    assert "where time goes" in CliRunner().invoke(app, ["trace", str(tmp_path / "out")]).output


# Calls made up here


def note(collective: str, op: str, line: str) -> PlanNote:
    return PlanNote(CallRecord(collective, "float32", (2,), op=op, algorithm=f"{collective}.ring", where=line), 8)


REDUCE, MAX = (note("all_reduce", op, "a.py:1") for op in ("sum", "max"))
GATHER = note("all_gather", "", "a.py:9")


def part(
    rank: int, calls: Sequence[tuple[int, int, PlanNote]], size: int = 2, host: int = 0, unix_ns: int = 0
) -> Recorded:
    """A rank with these calls of a group of all ranks: when it has entered and left them."""
    made = [RankCall(k, *call) for k, call in enumerate(calls, 1)]
    track = Track("world", 0, rank, rank, size, made, over=77)
    return Recorded("job", rank, size, host, f"h{host}", f"m{host}", 7, "", unix_ns, True, [track])


def report_of(*parts: Recorded) -> TraceReport:
    return report([track for part in parts for track in part.tracks])


def test_report_counts_times_bytes_and_latecomers() -> None:
    one = part(0, [(0, 500_000, REDUCE), (600_000, 700_000, REDUCE), (800_000, 900_000, GATHER)])
    two = part(1, [(400_000, 510_000, REDUCE), (610_000, 690_000, REDUCE), (790_000, 900_000, GATHER)])
    found = report_of(one, two)
    kinds = {kind.collective: kind for kind in found.kinds}
    reduce = kinds["all_reduce"]
    assert (reduce.calls, reduce.nbytes, reduce.total_ns) == (2, 8, 110_000 + 90_000)
    assert reduce.waited_ns == 400_000 // 2 + 10_000 // 2
    assert kinds["all_gather"].nbytes == 16
    assert found.late == [(1, 1, 400_000, "a.py:1")]
    assert found.times == [(0, 900_000, 700_000, 0), (1, 500_000, 300_000, 0)]


def test_wait_ends_when_its_call_is_left() -> None:
    one = part(0, [(1000, 90_000, REDUCE), (200_000, 200_400, GATHER)])
    two = part(1, [(95_000, 97_000, REDUCE), (300_000, 0, GATHER)])
    slices = check(list(events([one, two])))
    assert [(each["pid"], each["dur"], each["args"].get("waited_us")) for each in slices] == [
        (0, 89.0, 89.0), (1, 2.0, None), (0, 0.4, 0.4), (1, 0.0, None),
    ]  # fmt: skip
    assert [late[:3] for late in report_of(one, two).late] == [(1, 1, 89_000)]


def test_arrows_lead_to_the_rank_that_came_late() -> None:
    found = list(events([part(rank, [(100 + 50_000 * rank, 300_000, REDUCE)], 3) for rank in range(3)]))
    waited = [(one["args"].get("waited_for"), one["args"].get("waited_us")) for one in check(found)]
    assert waited == [(2, 100.0), (2, 50.0), (None, None)]
    assert [event["pid"] for event in found if event["ph"] == "s"] == [0, 1]
    assert [event["pid"] for event in found if event["ph"] == "f"] == [2, 2]


@pytest.mark.parametrize("drift_ppm", [0, 60])
def test_clocks_are_found_in_the_calls(drift_ppm: int) -> None:
    rng = random.Random(7)
    true: list[list[tuple[int, int]]] = [[], []]
    at = 10**9
    for _ in range(2000):
        at += rng.randrange(3 * 10**6, 10**8)
        came = [at, at + rng.randrange(-(10**6), 10**6)]
        for rank in range(2):  # whoever is first waits for the other, and a message takes its time
            true[rank].append((came[rank], max(came) + rng.randrange(20_000, 60_000)))

    def other(time: int) -> int:
        """What the other host's clock says at this time: it is ahead, and may be too fast."""
        return 5 * 10**12 + time + time * drift_ppm // 10**6

    mine = [(entered, left, REDUCE) for entered, left in true[0]]
    theirs = [(other(entered), other(left), REDUCE) for entered, left in true[1]]
    (one, two), (clock,) = aligned([part(0, mine), part(1, theirs, host=1)])
    width_ns = 60_000  # of the bounds by one call, at the most
    assert clock.error_ns is not None
    assert clock.error_ns <= (width_ns + (at - 10**9) * drift_ppm // 10**6) / 2
    assert abs(clock.ahead_ns - other(at // 2) + at // 2) <= clock.error_ns + width_ns
    assert [call.entered_ns for call in one.tracks[0].calls] == [entered for entered, _ in true[0]]
    for call, (entered, left) in zip(two.tracks[0].calls, true[1], strict=True):
        assert abs(call.entered_ns - entered) <= clock.error_ns + width_ns
        assert abs(call.left_ns - left) <= clock.error_ns + width_ns
    check(list(events([one, two])))  # arrows never lead back in time


def test_calls_that_have_failed_say_nothing() -> None:
    """Rank 0 gives up the third call long before rank 1 comes; in the second, they disagree."""
    mine = part(0, [(1000, 2000, REDUCE), (3000, 3001, REDUCE), (5000, 5001, REDUCE)])
    its = part(1, [(1500, 2100, REDUCE), (9000, 9001, MAX), (20_000, 20_100, REDUCE)], host=1)
    (_, two), (clock,) = aligned([mine, its])
    assert clock.error_ns == (500 + 1100 + 1) // 2
    assert two.tracks[0].calls[0].entered_ns == 1500 + (500 - 1100) // 2


def test_calendars_do_without_calls_together() -> None:
    mine = part(0, [(5, 6, REDUCE)], unix_ns=10)
    its = part(1, [(5, 6, REDUCE), (7, 0, REDUCE)], host=1, unix_ns=1000)
    (_, two), (clock,) = aligned([mine, its])
    assert clock.error_ns is None
    assert clock.ahead_ns == -990
    assert two.tracks[0].calls == [RankCall(1, 995, 996, REDUCE), RankCall(2, 997, 0, REDUCE)]  # it is in the second


def work() -> None:
    rank = unisono.get_rank()
    tensor = torch.full((8,), rank + 1.0)
    for _ in range(20):
        unisono.all_reduce(tensor, "max")
    pair = unisono.new_group([0, 3], name="pair")
    beside = [unisono.new_group(ranks, name="beside") for ranks in ([0, 1], [2, 3])]
    if rank in (0, 3):
        unisono.all_reduce(tensor, "min", group=pair)
    unisono.broadcast(tensor, 0, group=beside[rank // 2]) if rank < 2 else unisono.barrier(group=beside[rank // 2])
    unisono.barrier()


def test_one_file_of_a_job_over_hosts(traced: Path) -> None:
    """Of its folder, or of the folders of hosts that share nothing: each has the files of its ranks only."""
    with unisono.world(4, hosts="2x2", timeout_s=90) as world:
        world.run(work)
    for rank in range(4):
        (folder := traced / f"h{rank // 2}" / "calls").mkdir(parents=True, exist_ok=True)
        for path in (traced / "calls").glob(f"*.rank-{rank}.*"):
            shutil.copy(path, folder)
    assert "ranks 0, 1 of 4 not in it" in text_in(traced / "h1")
    assert {one["pid"] for one in read(traced / "h1")[1]} == {2, 3}
    assert "right to within about" in text_in(traced / "h0", traced / "h1")
    assert "right to within about" in text_in(traced)
    about, slices = read(traced)
    assert (about, slices) == read(traced / "h0")
    (clock,) = about["clocks"]
    assert clock["host"] == 1
    assert clock["name"].endswith("/1")
    assert abs(clock["ahead_ns"]) <= clock["error_ns"]  # they are one machine
    for rank in range(4):
        mine = [one for one in slices if one["pid"] == rank]
        assert len([one for one in mine if one["args"]["call"] == "all_reduce(float32[8], max)"]) >= 20
        assert [one["name"].partition(" ")[0] for one in mine].count("broadcast") == (rank < 2)
    found = json.loads(next(traced.glob("*.json")).read_text())["traceEvents"]
    titles = [event["args"]["name"] for event in found if event["name"] == "process_name"]
    assert [title.split(" (")[0].rpartition("/")[2] for title in titles] == [
        "0, rank 0", "0, rank 1", "1, rank 2", "1, rank 3",
    ]  # fmt: skip
    labels = [event["args"]["labels"] for event in found if event["name"] == "process_labels"]
    assert len(labels) == 4
    assert len(set(labels)) == 2
